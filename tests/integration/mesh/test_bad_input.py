"""Whatever a caller sends: an answer, an item's error, or a typed refusal that names the field and the limit."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2

import shoal
from shoal.v1 import inference_pb2 as pb
from shoal_common import limits
from tests.support import reference
from tests.support.raw import RawClient


def request(*texts: str, model: str = "minilm", **options) -> pb.EncodeRequest:
    return pb.EncodeRequest(
        model=model, options=pb.EncodeOptions(**options), items=[pb.Item(text=text) for text in texts]
    )


def statuses(response: pb.EncodeResponse) -> list[str]:
    return [result.status.reason or "OK" for result in response.results]


def vector(result: pb.EncodeResult) -> np.ndarray:
    return np.frombuffer(result.dense.data, "<f4")


# Items: a bad one fails alone.


@pytest.mark.parametrize("text", ["", " ", " \t\n  ", "\0", "\0\0\0", "\u200b"])
def test_text_without_a_token_is_the_items_error(raw: RawClient, text: str) -> None:
    response = raw.encode(request("good", text, "also good"))
    assert statuses(response) == ["OK", "ITEM_EMPTY", "OK"]
    assert response.results[1].status.code == code_pb2.INVALID_ARGUMENT
    assert not response.results[1].HasField("dense")


def test_good_bad_good_in_order_with_ids(raw: RawClient) -> None:
    items = [pb.Item(id="a", text="first"), pb.Item(id="b"), pb.Item(id="c", text="third")]
    response = raw.encode(pb.EncodeRequest(model="minilm", items=items))
    assert [r.id for r in response.results] == ["a", "b", "c"]
    assert statuses(response) == ["OK", "ITEM_EMPTY", "OK"]
    expected = reference.encode(["first", "third"])
    assert np.abs(vector(response.results[0]) - expected[0]).max() < 1e-4
    assert np.abs(vector(response.results[2]) - expected[1]).max() < 1e-4


def test_all_items_bad_is_still_an_ok_response(raw: RawClient) -> None:
    assert statuses(raw.encode(request("", " "))) == ["ITEM_EMPTY", "ITEM_EMPTY"]


def test_bad_utf8_in_one_item_of_three(raw: RawClient) -> None:
    good = pb.Item(text="good").SerializeToString()
    bad = b"\x12\x04ab\xff\xfe"
    payload = b"\x0a\x06minilm" + b"".join(b"\x52" + bytes([len(i)]) + i for i in (good, bad, good))
    response = raw.encode_bytes(payload, timeout=30)
    assert statuses(response) == ["OK", "ITEM_MALFORMED", "OK"]
    assert "UTF-8" in response.results[1].status.message


def test_media_for_a_text_model(raw: RawClient) -> None:
    media = pb.Item(id="m", media=pb.Media(mime_type="image/png", data=b"\x89PNG"))
    response = raw.encode(pb.EncodeRequest(model="minilm", items=[media, pb.Item(text="good")]))
    assert statuses(response) == ["ITEM_MEDIA_UNSUPPORTED", "OK"]
    assert "image/png" in response.results[0].status.message


def test_large_media_for_a_text_model(raw: RawClient) -> None:
    media = pb.Item(id="m", media=pb.Media(mime_type="image/png", data=bytes(5 * limits.MIB)))
    response = raw.encode(pb.EncodeRequest(model="minilm", items=[media, pb.Item(text="good")]))
    assert statuses(response) == ["ITEM_MEDIA_UNSUPPORTED", "OK"]
    assert response.results[0].id == "m"


@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦 family", "e\u0301te\u0301 cafe\u0301", "नमस्ते दुनिया", "日本語のテキスト"])
def test_emoji_and_combining_marks(raw: RawClient, text: str) -> None:
    result = raw.encode(request(text)).results[0]
    assert np.abs(vector(result) - reference.encode([text])[0]).max() < 1e-4
    assert result.input_tokens == reference.token_count(text)


def test_a_text_of_1_mib_and_one_byte_more(raw: RawClient) -> None:
    text = ("word " * (limits.TEXT_BYTES // 5 + 1))[: limits.TEXT_BYTES]
    response = raw.encode(request(text, text + "w", "good"))
    assert statuses(response) == ["OK", "ITEM_TOO_LARGE", "OK"]
    first, second, _ = response.results
    assert first.truncated and first.input_tokens_lower_bound and first.used_tokens == 256
    assert np.abs(vector(first) - reference.encode(["word " * 400])[0]).max() < 1e-4
    assert f"{limits.TEXT_BYTES:,}" in second.status.message and f"{limits.TEXT_BYTES + 1:,}" in second.status.message


def test_an_id_at_its_limit_and_one_byte_more(raw: RawClient) -> None:
    items = [
        pb.Item(id="i" * limits.ITEM_ID_BYTES, text="good"),
        pb.Item(id="i" * (limits.ITEM_ID_BYTES + 1), text="x"),
    ]
    response = raw.encode(pb.EncodeRequest(model="minilm", items=items))
    assert statuses(response) == ["OK", "ITEM_ID_TOO_LONG"]
    assert str(limits.ITEM_ID_BYTES) in response.results[1].status.message


# Lengths in tokens.


def test_text_at_the_maximum_and_one_token_over(raw: RawClient) -> None:
    at, over = "word " * 254, "word " * 255
    response = raw.encode(request(at, over, truncation=pb.TRUNCATION_END))
    first, second = response.results
    assert (first.input_tokens, first.used_tokens, first.truncated) == (256, 256, False)
    assert (second.input_tokens, second.used_tokens, second.truncated) == (257, 256, True)
    assert np.abs(vector(second) - reference.encode([over])[0]).max() < 1e-4

    response = raw.encode(request(at, over, truncation=pb.TRUNCATION_ERROR))
    assert statuses(response) == ["OK", "ITEM_TOO_LONG"]
    assert "257" in response.results[1].status.message and "256" in response.results[1].status.message


def test_max_tokens_512_and_513(raw: RawClient) -> None:
    text = "word " * 600
    result = raw.encode(request(text, max_tokens=512)).results[0]
    assert (result.input_tokens, result.used_tokens) == (602, 512)
    refusal = raw.refused(request(text, max_tokens=513))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields == ["options.max_tokens"] and "512" in refusal.text


def test_max_tokens_must_leave_room_for_a_token(raw: RawClient) -> None:
    assert raw.encode(request("one two", max_tokens=3)).results[0].used_tokens == 3
    assert raw.refused(request("one", max_tokens=2)).fields == ["options.max_tokens"]
    assert raw.refused(request("one", max_tokens=0)).fields == ["options.max_tokens"]


def test_prompts_count_as_tokens(raw: RawClient) -> None:
    query = raw.encode(request("night sky", model="minilm-bf16", role=pb.ENCODE_ROLE_QUERY)).results[0]
    assert query.input_tokens == reference.token_count("query: night sky")
    empty = raw.encode(request(" ", model="minilm-bf16", role=pb.ENCODE_ROLE_QUERY)).results[0]
    assert empty.status.reason == "ITEM_EMPTY"


# Dimensions and element types.


def test_dimensions(raw: RawClient) -> None:
    cut = raw.encode(request("night sky", dimensions=64)).results[0]
    whole = reference.encode(["night sky"])[0][:64]
    assert list(cut.dense.shape) == [64]
    assert np.abs(vector(cut) - whole / np.linalg.norm(whole)).max() < 1e-4
    unscaled = raw.encode(request("night sky", dimensions=64, normalize=False)).results[0]
    assert np.abs(vector(unscaled) - reference.encode(["night sky"], normalize=False)[0][:64]).max() < 1e-3
    for dimensions in (0, 385):
        refusal = raw.refused(request("night sky", dimensions=dimensions))
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal.fields == ["options.dimensions"] and "384" in refusal.text and str(dimensions) in refusal.text


def test_element_types(raw: RawClient) -> None:
    def tensor(element_type: pb.ElementType) -> pb.Tensor:
        return raw.encode(request("night sky", type=element_type)).results[0].dense

    exact = np.frombuffer(tensor(pb.ELEMENT_TYPE_F32).data, "<f4")
    half = tensor(pb.ELEMENT_TYPE_F16)
    assert np.array_equal(np.frombuffer(half.data, "<f2"), exact.astype(np.float16)) and list(half.shape) == [384]
    brain = np.frombuffer(tensor(pb.ELEMENT_TYPE_BF16).data, "<u2").astype(np.uint32) << 16
    assert np.abs(brain.view(np.float32) - exact).max() <= np.abs(exact).max() / 256
    int8 = np.frombuffer(tensor(pb.ELEMENT_TYPE_INT8).data, np.int8)
    assert np.abs(int8 - np.rint(exact * 127)).max() <= 1 and (int8 == np.rint(exact * np.float32(127))).mean() > 0.99
    binary = tensor(pb.ELEMENT_TYPE_BINARY)
    assert binary.data == np.packbits(exact > 0).tobytes() and list(binary.shape) == [384]


def test_int8_needs_normalised_vectors(raw: RawClient) -> None:
    refusal = raw.refused(request("night sky", type=pb.ELEMENT_TYPE_INT8, normalize=False))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT and refusal.fields == ["options.type"]


# Calls.


def test_item_counts(raw: RawClient) -> None:
    response = raw.encode(request(*["a"] * limits.REQUEST_ITEMS), timeout=120)
    assert statuses(response) == ["OK"] * limits.REQUEST_ITEMS
    refusal = raw.refused(request(*["a"] * (limits.REQUEST_ITEMS + 1)))
    assert refusal.fields == ["items"] and "2,048" in refusal.text and "2,049" in refusal.text
    refusal = raw.refused(request())
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT and refusal.fields == ["items"]


def test_unknown_names(raw: RawClient) -> None:
    refusal = raw.refused(request("a", model="minilmm"))
    assert refusal.code is grpc.StatusCode.NOT_FOUND and refusal.reason == "MODEL_NOT_FOUND"
    assert "minilm" in refusal.near and refusal.request_id
    assert raw.refused(request("a", model="")).code is grpc.StatusCode.INVALID_ARGUMENT
    adapter = pb.EncodeRequest(model="minilm", adapter="german-law", items=[pb.Item(text="a")])
    refusal = raw.refused(adapter)
    assert refusal.code is grpc.StatusCode.NOT_FOUND and refusal.reason == "ADAPTER_NOT_FOUND"


@pytest.mark.parametrize("name", ["../../etc/passwd", "%s%n", "a" * 100_000, "minilm\n", "мини"])
def test_hostile_names_are_only_names(raw: RawClient, name: str) -> None:
    refusal = raw.refused(request("a", model=name))
    assert refusal.code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
    assert len(refusal.text.encode()) < 4 * limits.KIB


@pytest.mark.parametrize("field", ["type", "role", "truncation"])
def test_unknown_enum_values(raw: RawClient, field: str) -> None:
    refusal = raw.refused(pb.EncodeRequest(model="minilm", options={field: 77}, items=[pb.Item(text="a")]))  # pyright: ignore[reportArgumentType]
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields == [f"options.{field}"] and "77" in refusal.text


def test_unknown_priority_and_outputs(raw: RawClient) -> None:
    bad = pb.EncodeRequest(model="minilm", priority=9, items=[pb.Item(text="a")])  # pyright: ignore[reportArgumentType]
    assert raw.refused(bad).fields == ["priority"]
    for output in (pb.ENCODE_OUTPUT_SPARSE, 42):
        assert raw.refused(request("a", outputs=[output])).fields == ["options.outputs"]


def test_unknown_fields_are_refused(raw: RawClient) -> None:
    in_options = (
        pb.EncodeRequest(model="minilm", items=[pb.Item(text="a")]).SerializeToString() + b"\x22\x03\xf8\x06\x01"
    )
    refusal = raw.refused(in_options)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT and "options" in refusal.fields[0]


def test_idempotency_key_limit(raw: RawClient) -> None:
    def keyed(size: int) -> pb.EncodeRequest:
        return pb.EncodeRequest(model="minilm", idempotency_key="k" * size, items=[pb.Item(text="a")])

    assert statuses(raw.encode(keyed(limits.IDEMPOTENCY_KEY_BYTES))) == ["OK"]
    assert raw.refused(keyed(limits.IDEMPOTENCY_KEY_BYTES + 1)).fields == ["idempotency_key"]


@pytest.mark.parametrize("garbage", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", bytes(range(256)), b"\x0a\x02\xff\xfe"])
def test_garbage_bytes(raw: RawClient, garbage: bytes) -> None:
    refusal = raw.refused(garbage)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT and refusal.reason == "MALFORMED_MESSAGE"


def test_a_message_over_64_mib(raw: RawClient) -> None:
    item = pb.Item(text="a" * (limits.MIB - 100))
    just_over = pb.EncodeRequest(model="minilm", items=[item] * 65).SerializeToString()
    assert len(just_over) > limits.MESSAGE_BYTES
    for payload in (just_over, just_over * 2):
        refusal = raw.refused(payload, timeout=60)
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"{limits.MESSAGE_BYTES:,}" in refusal.text and f"{len(payload):,}" in refusal.text


def test_expired_and_tiny_deadlines(raw: RawClient) -> None:
    refusal = raw.refused(request("a"), timeout=0.000001)
    assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
    big = request(*["word " * 250] * 512)
    refusal = raw.refused(big, timeout=0.3)
    assert refusal.code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert statuses(raw.encode(request("the mesh goes on"))) == ["OK"]


def test_a_client_that_cancels(raw: RawClient) -> None:
    call = raw.encode_bytes.future(request(*["word " * 250] * 512).SerializeToString(), timeout=30)
    call.cancel()
    assert call.cancelled()
    assert statuses(raw.encode(request("the mesh goes on"))) == ["OK"]


def test_a_client_that_vanishes(mesh) -> None:
    channel = grpc.insecure_channel(mesh.address)
    raw = RawClient(channel)
    call = raw.encode_bytes.future(request(*["word " * 250] * 256).SerializeToString(), timeout=30)
    raw.infer(iter([pb.InferRequest(request_id="1", encode=request(*["word " * 250] * 256))]))
    channel.close()
    assert call.done()
    with grpc.insecure_channel(mesh.address) as again:
        assert statuses(RawClient(again).encode(request("the mesh goes on"))) == ["OK"]


# Streams: a bad request fails alone.


def test_infer_answers_each_request_by_its_id(raw: RawClient) -> None:
    requests: list[pb.InferRequest | bytes] = [
        pb.InferRequest(request_id="good", encode=request("first")),
        pb.InferRequest(request_id="unknown-model", encode=request("x", model="nope")),
        pb.InferRequest(request_id="nothing"),
        pb.InferRequest(request_id="", encode=request("no id")),
        b"\x0a\x04junk\x52\x03\xff\xff\xff",
        b"\xff\xff\xff",
        pb.InferRequest(request_id="expired", deadline_ms=1, encode=request(*["word " * 250] * 64)),
        pb.InferRequest(request_id="last", encode=request("second")),
    ]
    answers = {answer.request_id: answer for answer in raw.infer(requests)}
    assert all(answer.last for answer in answers.values())
    assert statuses(answers["good"].encode) == ["OK"] and statuses(answers["last"].encode) == ["OK"]
    assert answers["unknown-model"].error.code == code_pb2.NOT_FOUND
    assert answers["nothing"].error.code == code_pb2.INVALID_ARGUMENT
    assert answers[""].error.code == code_pb2.INVALID_ARGUMENT
    assert answers["junk"].error.code == code_pb2.INVALID_ARGUMENT
    assert answers["expired"].error.code in (code_pb2.DEADLINE_EXCEEDED, code_pb2.RESOURCE_EXHAUSTED)


def test_a_request_id_at_its_limit_and_one_byte_more(raw: RawClient) -> None:
    at, over = "r" * limits.REQUEST_ID_BYTES, "r" * (limits.REQUEST_ID_BYTES + 1)
    requests = [pb.InferRequest(request_id=each, encode=request("a")) for each in (at, over)]
    answers = {answer.request_id: answer for answer in raw.infer(requests)}
    assert statuses(answers[at].encode) == ["OK"]
    error = answers[over].error
    assert error.code == code_pb2.INVALID_ARGUMENT and "256" in error.message and "257" in error.message


def test_a_request_id_in_flight_is_refused(raw: RawClient) -> None:
    twice = [pb.InferRequest(request_id="same", encode=request("word " * 250)) for _ in range(2)]
    answers = list(raw.infer(twice))
    assert sorted(answer.WhichOneof("response") or "" for answer in answers) == ["encode", "error"]
    assert next(a for a in answers if a.HasField("error")).error.code == code_pb2.INVALID_ARGUMENT


# The SDK says it before anything is sent.


def test_lone_surrogates_are_named_by_the_sdk(mesh) -> None:
    with shoal.connect(mesh.address) as client, pytest.raises(ValueError, match="1"):
        client.encode(["good", "bad \ud800"], model="minilm")
