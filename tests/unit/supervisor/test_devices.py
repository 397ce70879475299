"""Workers and models that do not fit together are refused before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal_common.profile import Encode, Profile, RuntimeName, Source
from shoal_supervisor import devices
from shoal_supervisor.errors import CannotStart
from shoal_supervisor.options import MeshOptions

SIM = {"sim": Path("sim.json"), "sim_workers": 2}


def model(*runtimes: RuntimeName) -> Profile:
    encode = Encode(dimensions=8, default_max_tokens=16, max_tokens=16, special_tokens=2)
    return Profile(name="-".join(runtimes), source=Source(folder="/models"), encode=encode, runtimes=runtimes)


@pytest.mark.parametrize(
    ("options", "models"),
    [
        ({}, [model("torch")]),
        ({}, [model("torch", "sim")]),
        ({**SIM, "workers": 0}, [model("sim"), model("sim", "torch")]),
        ({**SIM, "workers": 1}, [model("sim"), model("torch")]),
    ],
)
def test_these_fit(options: dict[str, Any], models: list[Profile]) -> None:
    devices.check(MeshOptions(**options), models)


@pytest.mark.parametrize(
    ("options", "models", "said"),
    [
        ({"sim": Path("sim.json")}, [], "--sim and --sim-workers belong together"),
        ({"sim_workers": 1}, [], "--sim and --sim-workers belong together"),
        ({"workers": 0}, [], "no worker"),
        ({}, [model("sim")], "no worker can run model sim: its runtimes are sim"),
        ({**SIM, "workers": 0}, [model("sim"), model("torch")], "no worker can run model torch"),
    ],
)
def test_these_do_not(options: dict[str, Any], models: list[Profile], said: str) -> None:
    with pytest.raises(CannotStart, match=said):
        devices.check(MeshOptions(**options), models)
