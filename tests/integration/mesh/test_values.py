"""Answers are right: against transformers and sentence-transformers, whatever way and company they came in."""

from __future__ import annotations

import random

import grpc
import numpy as np
import pytest

import shoal
from shoal.v1 import inference_pb2 as pb
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import reference, texts
from tests.support.raw import RawClient


@pytest.fixture
def client(mesh: EmbeddedMesh):
    with shoal.connect(mesh.address) as connected:
        yield connected


def test_two_hundred_mixed_texts_equal_transformers(client) -> None:
    sample = [*texts.mixed(seed=11, count=198), "a", texts.text(random.Random(3), 510)]
    vectors = client.encode(sample, model="minilm", max_tokens=512)
    expected = reference.encode(sample, max_tokens=512)
    assert reference.cosines(vectors, expected).min() >= 0.99999
    assert np.abs(vectors - expected).max() <= 1e-4


def test_default_length_equals_sentence_transformers(client) -> None:
    from sentence_transformers import SentenceTransformer

    sample = [*texts.mixed(seed=12, count=60), "Ünïcödé and 日本語", "word " * 300]
    expected = SentenceTransformer(str(reference.minilm_folder()), device="cpu").encode(sample)
    vectors = client.encode(sample, model="minilm")
    assert reference.cosines(vectors, np.asarray(expected)).min() >= 0.99999
    assert np.abs(vectors - np.asarray(expected)).max() <= 1e-4


def test_bf16_is_close(client) -> None:
    sample = texts.mixed(seed=13, count=100)
    vectors = client.encode(sample, model="minilm-bf16", max_tokens=512)
    assert reference.cosines(vectors, reference.encode(sample, max_tokens=512)).min() >= 0.999


def test_an_item_does_not_depend_on_its_company(client, mesh: EmbeddedMesh) -> None:
    rng = random.Random(14)
    item = texts.text(rng, 23)
    alone = client.encode([item], model="minilm")[0]
    for _ in range(4):
        company = texts.mixed(seed=rng.randrange(1 << 30), count=63)
        at = rng.randrange(64)
        batch = [*company[:at], item, *company[at:]]
        assert np.abs(client.encode(batch, model="minilm", max_tokens=512)[at] - alone).max() <= 1e-5
    with grpc.insecure_channel(mesh.address) as channel:
        request = pb.EncodeRequest(model="minilm", items=[pb.Item(text=item)])
        requests = [pb.InferRequest(request_id=str(n), encode=request) for n in range(32)]
        for answer in RawClient(channel).infer(requests):
            streamed = np.frombuffer(answer.encode.results[0].dense.data, "<f4")
            assert np.abs(streamed - alone).max() <= 1e-5


def test_provenance_says_where_an_answer_came_from(client) -> None:
    answer = client.encode_items(texts.mixed(seed=15, count=70), model="minilm")
    provenance = answer.provenance[0] if isinstance(answer.provenance, (list, tuple)) else answer.provenance
    assert provenance.model == "minilm" and provenance.runtime == "torch" and provenance.device == "cpu"
    assert len(provenance.revision) == 64
