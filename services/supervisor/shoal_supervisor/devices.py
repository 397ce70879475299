"""The devices that a mesh's workers have, and whether they can run the models that it is started with."""

from __future__ import annotations

from collections.abc import Iterable

from shoal_common.profile import Profile
from shoal_supervisor.errors import CannotStart
from shoal_supervisor.options import MeshOptions


def check(options: MeshOptions, models: Iterable[Profile]) -> None:
    """Checks the choice of workers, and that each of the models has one.

    Raises:
        CannotStart: a mesh of these workers would never be ready.
    """
    if (options.sim is None) != (options.sim_workers == 0):
        raise CannotStart("--sim and --sim-workers belong together: simulated workers do what a sim file says")
    if options.workers + options.sim_workers == 0:
        raise CannotStart("there would be no worker: --workers or --sim-workers must be 1 or more")
    counts = {"cpu": options.workers, "sim:0": options.sim_workers}
    devices = [device for device, count in counts.items() if count]
    for model in models:
        if not any(model.runs_on(device) for device in devices):
            raise CannotStart(
                f"no worker can run model {model.name}: its runtimes are {', '.join(model.runtimes)}, "
                f"and there are {options.workers} workers for torch and {options.sim_workers} for sim; "
                "add workers (--workers, --sim-workers) or choose other models (--model)"
            )
