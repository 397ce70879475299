"""`shoal models register` and `shoal models delete`: change what a mesh serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from shoal.cli import failures
from shoal.cli.up import DEFAULT_STATE, State

if TYPE_CHECKING:
    from shoal.registry.v1 import registry_pb2
    from shoal.registry.v1.registry_pb2_grpc import RegistryServiceStub

Registry = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="The registry itself: host:port or unix:/path.", show_default="the one of --state"
    ),
]
Answer = TypeVar("Answer")
REGISTRY_WITHIN_S = 30.0


def register(
    file: Annotated[Path, typer.Argument(help="A model profile, YAML or JSON.", show_default=False)],
    state: State = DEFAULT_STATE,
    registry: Registry = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Longest wait for a worker to hold it.")] = 600.0,
) -> None:
    """Register a model profile, and wait until a worker holds the model.

    With --registry it is registered only; `shoal models --watch` shows what comes of it.
    Exit codes: 0 the model is ready (or registered), 1 it is not, 2 wrong usage or input.
    """
    import asyncio

    from shoal.registry.v1 import registry_pb2

    address, gateway = _addresses(state, registry)
    with failures.reported():
        request = registry_pb2.RegisterModelRequest(profile=file.read_text())
        answer = asyncio.run(_ask(address, lambda stub: stub.RegisterModel(request, timeout=REGISTRY_WITHIN_S)))
        typer.echo(f"{answer.model.name}: {'registered' if answer.changed else 'was registered already'}")
        if gateway is not None:
            asyncio.run(_until_held(gateway, _token(state), answer.model, timeout))


def delete(
    name: Annotated[str, typer.Argument(help="The model's name, not an alias.", show_default=False)],
    state: State = DEFAULT_STATE,
    registry: Registry = None,
) -> None:
    """Remove a model; what waits in its queue is answered NOT_FOUND.

    Exit codes: 0 it is gone, 1 it is not.
    """
    import asyncio

    from shoal.registry.v1 import registry_pb2

    address, _ = _addresses(state, registry)
    with failures.reported():
        request = registry_pb2.DeleteModelRequest(name=name)
        asyncio.run(_ask(address, lambda stub: stub.DeleteModel(request, timeout=REGISTRY_WITHIN_S)))
        typer.echo(f"{name}: deleted")


def _addresses(state: Path, registry: str | None) -> tuple[str, str | None]:
    """The registry's address, and the gateway's if it is known."""
    if registry is not None:
        return registry, None
    try:
        from shoal_supervisor import status_file
        from shoal_supervisor.state import StateFolder
    except ModuleNotFoundError:
        failures.usage("name the registry with --registry")
    folder = StateFolder(state)
    mesh = status_file.read(folder.status)
    if mesh is None or folder.holder() != mesh.pid:
        failures.usage(f"no mesh runs in {folder.path}: start one with `shoal up`, or name a registry with --registry")
    return mesh.process("registry").listen, mesh.address


def _token(state: Path) -> str | None:
    """What a mesh of this machine is called with by its own tools."""
    from shoal_supervisor import operator_token
    from shoal_supervisor.state import StateFolder

    return operator_token.read(StateFolder(state))


async def _ask(address: str, call: Callable[[RegistryServiceStub], Awaitable[Answer]]) -> Answer:
    """What the registry answers; raises CallError."""
    import grpc

    from shoal import channel, statuses
    from shoal.registry.v1 import registry_pb2_grpc

    async with channel.open_channel(channel.check_target(address), None) as opened:
        try:
            return await call(registry_pb2_grpc.RegistryServiceStub(opened))
        except grpc.aio.AioRpcError as error:
            raise statuses.from_rpc_error(error, address) from None


async def _until_held(gateway: str, token: str | None, registered: registry_pb2.Model, timeout_s: float) -> None:
    """Returns when a worker holds the model; ends the command when none can, or none does in time."""
    import asyncio

    import shoal.aio

    state = "not known to the gateway"
    try:
        async with asyncio.timeout(timeout_s), shoal.aio.connect(gateway, token=token) as mesh:
            async for models in mesh.watch_models():
                found = next((model for model in models if model.revision == registered.profile_digest), None)
                if found is None:
                    continue
                if found.state == "failed":
                    failures.say(f"{found.name} cannot be loaded: {found.error}")
                    raise typer.Exit(failures.CALL_FAILED)
                if found.state == "ready":
                    typer.echo(f"{found.name}: ready")
                    return
                if found.state != state:
                    state = found.state
                    typer.echo(f"{found.name}: {state}")
    except TimeoutError:
        failures.say(f"{registered.name} is not ready after {timeout_s:.0f} s: {state}")
        raise typer.Exit(failures.CALL_FAILED) from None
