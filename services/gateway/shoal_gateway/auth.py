"""Who calls, and whether they may: every service of the gateway asks here before it does anything."""

from __future__ import annotations

import grpc

from shoal_common import errors, tokens
from shoal_common.tokens import Identity, Scope
from shoal_gateway.token_file import TokenFile

METADATA_KEY = "authorization"
SCHEME = "bearer"


class Auth:
    """Knows callers by their tokens; without a file of tokens everybody is the open tenant and may do all."""

    def __init__(self, token_file: TokenFile | None) -> None:
        self._token_file = token_file

    def identify(self, authorization: str | bytes | None) -> Identity:
        """Who sent this authorization metadata, None if there was none.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        if self._token_file is None:
            return tokens.OPEN
        if authorization is None:
            raise errors.unauthenticated("TOKEN_MISSING", "this mesh wants a token: send `authorization: Bearer …`")
        scheme, _, token = str(authorization).partition(" ")
        if scheme.lower() != SCHEME or not (token := token.strip()):
            raise errors.unauthenticated("TOKEN_MALFORMED", "the authorization is not of the form `Bearer …`")
        identity = self._token_file.find(token)
        if identity is None:
            raise errors.unauthenticated("TOKEN_UNKNOWN", "this mesh does not know the token; it may have been revoked")
        return identity

    def caller(self, context: grpc.aio.ServicerContext) -> Identity:
        """Who calls; raises CallError UNAUTHENTICATED."""
        return self.identify(authorization_of(context))

    def require(self, scope: Scope, context: grpc.aio.ServicerContext) -> Identity:
        """Who calls, if they may do what needs this scope.

        Raises:
            CallError: UNAUTHENTICATED or PERMISSION_DENIED.
        """
        return permitted(self.caller(context), scope)


def permitted(identity: Identity, scope: Scope) -> Identity:
    """The identity, if it has the scope; raises CallError PERMISSION_DENIED."""
    if scope not in identity.scopes:
        raise errors.scope_missing(scope, identity.tenant)
    return identity


def authorization_of(context: grpc.aio.ServicerContext) -> str | bytes | None:
    """A call's authorization metadata."""
    for key, value in context.invocation_metadata() or ():
        if key == METADATA_KEY:
            return value
    return None
