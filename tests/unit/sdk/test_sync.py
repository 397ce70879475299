"""The blocking client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import shoal
from tests.unit.sdk.fake_mesh import FakeMesh, status

TEXTS = [str(number) for number in range(300)]


def test_many_threads_share_a_mesh(fake: FakeMesh) -> None:
    with shoal.connect(fake.target) as mesh, ThreadPoolExecutor(8) as threads:
        for vectors in threads.map(lambda count: mesh.encode(TEXTS[:count]), range(1, 301, 13)):
            assert np.array_equal(vectors[:, 0], np.arange(len(vectors)))


def test_several_meshes_in_one_process(fake: FakeMesh) -> None:
    with shoal.connect(fake.target) as one, shoal.connect(fake.target) as other:
        assert one.encode("1")[0] == other.encode("1")[0] == 1


async def test_inside_a_running_loop(fake: FakeMesh) -> None:
    with shoal.connect(fake.target) as mesh:
        assert mesh.encode("1")[0] == 1


def test_everything_it_has(fake: FakeMesh) -> None:
    seen: list[int] = []
    with shoal.connect(fake.target) as mesh:
        assert len(mesh.encode_items(TEXTS, progress=seen.append).results) == 300
        assert seen[-1] == 300
        assert [outcome.index for outcome in mesh.encode_stream(iter(TEXTS))] == list(range(300))
        assert mesh.model("minilm") == mesh.models()[0]
        watch = mesh.watch_models()
        assert next(watch) == mesh.models()
        with pytest.raises(shoal.NotFound):
            mesh.model("none")
        with pytest.raises(shoal.ItemsFailed):
            mesh.encode(["", "1"])


def test_a_stream_left_early_is_closed(fake: FakeMesh) -> None:
    with shoal.connect(fake.target) as mesh:
        for outcome in mesh.encode_stream(TEXTS * 100):
            if outcome.index == 3:
                break
        assert mesh.encode("7")[0] == 7
    assert len(fake.heard) < 100


def test_a_closed_mesh_says_so(fake: FakeMesh) -> None:
    mesh = shoal.connect(fake.target)
    mesh.encode("1")
    mesh.close()
    mesh.close()
    with pytest.raises(RuntimeError, match="closed"):
        mesh.encode("1")


def test_a_callback_cannot_wait_for_itself(fake: FakeMesh) -> None:
    with shoal.connect(fake.target) as mesh, pytest.raises(RuntimeError, match="callback"):
        mesh.encode(["1"], progress=lambda done: mesh.close())


def test_unmet_errors_pass_through(fake: FakeMesh) -> None:
    import grpc

    fake.faults.append(status(grpc.StatusCode.UNAUTHENTICATED, "who?"))
    with shoal.connect(fake.target) as mesh, pytest.raises(shoal.Unauthenticated, match="who"):
        mesh.encode("1")


def test_an_iterator_may_be_dropped_on_the_loops_own_thread(fake: FakeMesh, recwarn: pytest.WarningsRecorder) -> None:
    with shoal.connect(fake.target) as mesh:
        held = [mesh.encode_stream(TEXTS)]
        next(held[0])
        mesh.encode("1", progress=lambda done: held.clear())
        assert mesh.encode("7")[0] == 7
    assert not list(recwarn)
