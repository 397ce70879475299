"""Force: mixed load over two workers while processes are killed, paused and cut off, and the broker restarts.

Short here; `make chaos` runs it for ten minutes. SHOAL_FORCE_S and SHOAL_FORCE_SEED set length and seed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_supervisor.embedded import EmbeddedMesh
from tests.support.broker_proxy import BrokerProxy
from tests.support.force import Force, schedule
from tests.support.mixed_load import MixedLoad
from tests.support.nats import NatsServer

SECONDS = float(os.environ.get("SHOAL_FORCE_S", "45"))
SEED = int(os.environ.get("SHOAL_FORCE_SEED") or secrets.randbelow(10_000))
START_S = 120


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def proxy(broker: NatsServer) -> Iterator[BrokerProxy]:
    running = BrokerProxy(broker.port, broker.token)
    running.start()
    yield running
    running.stop()


@pytest.mark.timeout(SECONDS + 3 * START_S)
def test_nothing_is_lost_wrong_or_untyped(tmp_path: Path, broker: NatsServer, proxy: BrokerProxy) -> None:
    faults = schedule(SEED, SECONDS)
    print(f"seed {SEED}: {len(faults)} faults in {SECONDS:.0f} s")
    options = {"workers": 2, "nats_url": proxy.url, "nats_token": proxy.token}
    with EmbeddedMesh(tmp_path / "state", models=["minilm"], **options) as mesh:
        mesh.wait_for_model("minilm")
        force = Force(mesh, broker, proxy)
        with MixedLoad(mesh.address, SEED) as load:
            load.wait_for_answers(20)
            force.run(faults)
            mesh.wait_whole(timeout_s=START_S)
            load.wait_for_answers(50)
    print(f"faults {dict(force.done)}\n{load.summary()}")
    assert load.lost == [], f"seed {SEED}: {load.summary()}"
    assert load.wrong == [], f"seed {SEED}: {load.summary()}"
    assert load.untyped == [], f"seed {SEED}: {load.summary()}"
