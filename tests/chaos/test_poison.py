"""A poisoned item, one that the runtime dies of, fails alone."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2
from transformers import AutoTokenizer

from shoal.v1 import inference_pb2 as pb
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import reference
from tests.support.load import CheckedLoad
from tests.support.raw import RawClient

POISON = "this very text kills the runtime"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory):
    ids = AutoTokenizer.from_pretrained(str(reference.minilm_folder()))(POISON)["input_ids"]
    folder: Path = tmp_path_factory.mktemp("poison")
    poisoned = {"SHOAL_FAULT_POISON": ",".join(map(str, ids))}
    with EmbeddedMesh(folder, models=["minilm"], env=poisoned) as running:
        running.wait_for_model("minilm")
        yield running


def test_a_poisoned_item_fails_alone(mesh: EmbeddedMesh) -> None:
    mates = ["a good text", "another good text", "and a third"]
    items = [pb.Item(text=text) for text in (mates[0], POISON, *mates[1:])]
    with CheckedLoad(mesh.address, timeout_s=60) as load, grpc.insecure_channel(mesh.address) as channel:
        load.wait_for_answers(10)
        response = RawClient(channel).encode(pb.EncodeRequest(model="minilm", items=items), timeout=60)
        load.wait_for_answers(10)
    assert [result.status.code for result in response.results] == [0, code_pb2.INTERNAL, 0, 0]
    assert response.results[1].status.reason == "RUNTIME_CRASHED"
    vectors = np.stack([np.frombuffer(response.results[n].dense.data, "<f4") for n in (0, 2, 3)])
    assert np.abs(vectors - reference.encode(mates)).max() <= 1e-4
    assert load.wrong == [] and load.failed == []
