"""The processes of a mesh and what each is told."""

from hashlib import sha256
from pathlib import Path

import pytest

from shoal_supervisor.broker import Broker, external
from shoal_supervisor.leftovers import MARKER
from shoal_supervisor.options import MeshOptions
from shoal_supervisor.plan import ProcessPlan, Stage, plan
from shoal_supervisor.runtime_folder import LONGEST_NAME
from shoal_supervisor.state import StateFolder

BROKER = Broker(command=("sh", "guard", "nats-server"), url="nats://127.0.0.1:20001", token="secret")


def planned(broker: Broker = BROKER, operator_token: str = "", **options: object) -> dict[str, ProcessPlan]:
    processes = plan(
        MeshOptions.model_validate({"port": 50_051, "cores": 8, **options}),
        StateFolder(Path("/state")),
        Path("/run/shoal-0"),
        broker,
        Path("/bin/shoal-sidecar"),
        {"PATH": "/bin"},
        operator_token,
    )
    return {process.name: process for process in processes}


def test_the_sidecar_is_first_and_the_broker_second():
    assert list(planned())[:2] == ["sidecar", "nats"]


@pytest.mark.parametrize(("cores", "broker_cores"), [(1, "1"), (2, "1"), (16, "4")])
def test_the_broker_leaves_the_cores_to_models(cores: int, broker_cores: str):
    assert planned(cores=cores)["nats"].environment["GOMAXPROCS"] == broker_cores


def test_a_broker_that_others_run_is_used_and_not_started():
    processes = planned(external("nats://10.0.0.1:4222", "theirs"))
    assert "nats" not in processes
    environment = processes["gateway"].environment
    assert (environment["SHOAL_NATS_URL"], environment["SHOAL_NATS_TOKEN"]) == ("nats://10.0.0.1:4222", "theirs")


def test_every_process_of_the_mesh_is_there():
    names = {"sidecar", "nats", "registry", "scheduler", "lora-store", "worker-0", "worker-1", "gateway"}
    assert set(planned(workers=2)) == names


@pytest.mark.parametrize(("cores", "workers", "share"), [(8, 1, "8"), (8, 3, "2"), (2, 4, "1")])
def test_workers_share_the_cores(cores: int, workers: int, share: str):
    processes = planned(cores=cores, workers=workers)
    for number in range(workers):
        settings = processes[f"worker-{number}"].environment
        assert (settings["SHOAL_WORKER"], settings["SHOAL_STREAMS"], settings["SHOAL_THREADS"]) == (
            f"worker-{number}",
            share,
            share,
        )


def test_simulated_workers_stand_beside_those_on_the_cpu():
    processes = planned(workers=1, sim="/sims/slow.json", sim_workers=2)
    for number in range(2):
        settings = processes[f"worker-sim-{number}"].environment
        assert (settings["SHOAL_WORKER"], settings["SHOAL_DEVICE"]) == (f"worker-sim-{number}", f"sim:{number}")
        assert "SHOAL_STREAMS" not in settings
    command = processes["sidecar"].command
    assert command[command.index("--sim") + 1] == "/sims/slow.json"
    assert processes["worker-0"].environment["SHOAL_DEVICE"] == "cpu"


def test_torch_is_started_with_the_sidecar_only_if_a_worker_needs_it():
    assert "--lazy-torch" not in planned(workers=1, sim="sim.json", sim_workers=1)["sidecar"].command
    assert "--sim" not in planned()["sidecar"].command
    assert "--lazy-torch" in planned(workers=0, sim="sim.json", sim_workers=1)["sidecar"].command


def test_services_listen_and_find_each_other():
    processes = planned()
    for name in ("registry", "scheduler", "lora-store", "worker-0", "gateway"):
        settings = processes[name].environment
        assert settings["SHOAL_LISTEN"] == processes[name].listen
        assert settings["SHOAL_REGISTRY"] == processes["registry"].listen
        assert settings["SHOAL_SCHEDULER"] == processes["scheduler"].listen
        assert (settings["SHOAL_NATS_URL"], settings["SHOAL_NATS_TOKEN"]) == (BROKER.url, BROKER.token)
        assert settings["SHOAL_EXIT_WITH_PARENT"] == "1"
    assert processes["worker-0"].environment["SHOAL_SIDECAR"] == processes["sidecar"].listen
    assert processes["gateway"].listen == "127.0.0.1:50051"
    assert processes["registry"].environment["SHOAL_REGISTER"] == "minilm"


def test_large_items_lie_where_all_that_touch_them_find_them():
    processes = planned(workers=1, sim=Path("/sim.json"), sim_workers=1)
    told = {name for name, process in processes.items() if process.environment.get("SHOAL_BLOBS") == "/state/blobs"}
    assert told == {"gateway", "worker-0", "worker-sim-0", "lora-store"}


def test_all_is_marked_so_that_leftovers_are_found():
    assert {process.environment[MARKER] for process in planned().values()} == {"/state"}


def test_names_of_sockets_fit_into_the_room_kept_for_them():
    for process in planned(workers=64, sim="sim.json", sim_workers=64).values():
        if process.listen.startswith("unix:"):
            assert len(Path(process.listen).name) + 1 <= len(LONGEST_NAME)


def test_processes_stop_before_what_they_need():
    stages = {name: process.stage for name, process in planned().items()}
    assert stages["gateway"] < stages["worker-0"] < stages["registry"] < stages["sidecar"] < stages["nats"]
    assert stages["nats"] == max(Stage)


def test_tokens_are_asked_for_by_the_gateway_alone():
    processes = planned(tokens="/etc/shoal/tokens.yaml", operator_token="ours")
    assert processes["gateway"].environment["SHOAL_TOKENS"] == "/etc/shoal/tokens.yaml"
    assert processes["gateway"].environment["SHOAL_OPERATOR_SHA256"] == sha256(b"ours").hexdigest()
    assert "ours" not in " ".join(processes["gateway"].environment.values())
    assert not any("SHOAL_TOKENS" in each.environment for name, each in processes.items() if name != "gateway")
    # What is set around an open mesh does not close it.
    assert planned()["gateway"].environment["SHOAL_TOKENS"] == ""
