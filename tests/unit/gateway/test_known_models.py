"""Before the first snapshot no model is unknown: callers are told to come again."""

from __future__ import annotations

from typing import cast

import pytest
from google.rpc import code_pb2

from shoal_common.errors import CallError
from shoal_common.nats_session import Session
from shoal_common.registry_view import RegistryView
from shoal_gateway.known_models import KnownModels
from tests.unit.gateway.models import registered


def test_before_and_after_the_first_snapshot() -> None:
    registry = RegistryView(cast(Session, None), "", "test")
    known = KnownModels(registry)
    for ask in (known.by_name, lambda: known.resolve("minilm")):
        with pytest.raises(CallError) as refusal:
            ask()
        assert refusal.value.code == code_pb2.UNAVAILABLE
    registry.models["minilm"] = registered()
    registry.aliases["small"] = "minilm"
    registry.ready.set()
    assert known.resolve("small").name == "minilm" and list(known.by_name()) == ["minilm"]
    with pytest.raises(CallError) as refusal:
        known.resolve("minilmm")
    assert refusal.value.code == code_pb2.NOT_FOUND
