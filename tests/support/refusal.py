"""What a test says of a call that must be refused: its code, reason and the fields it names."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status


async def refused(call: Awaitable[Any], code: grpc.StatusCode, reason: str, *fields: str) -> grpc.aio.AioRpcError:
    """Awaits a call that must end with a code, an ErrorInfo reason and, if given, these violations."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    assert error.code() == code, error.details()
    status = rpc_status.from_call(error)  # pyright: ignore[reportArgumentType]
    assert status is not None
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert any(detail.Unpack(info) for detail in status.details)
    assert info.reason == reason, error.details()
    if fields:
        assert any(detail.Unpack(bad) for detail in status.details)
        assert [violation.field for violation in bad.field_violations] == list(fields)
    return error
