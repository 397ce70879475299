"""`shoal encode`, called in process."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.v1 import inference_pb2
from tests.unit.sdk.fake_mesh import DIMENSIONS, FakeMesh, status


def shoal(fake: FakeMesh, *args: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(app, list(args), input=stdin, env={"SHOAL_TARGET": fake.target})


def test_texts_as_arguments(fake: FakeMesh) -> None:
    result = shoal(fake, "encode", "7", "8")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "0  [+7.0000 +1.0000 +0.0000 +0.0000 …]  384 dims  norm 7.071  3 tokens",
        "1  [+8.0000 +1.0000 +0.0000 +0.0000 …]  384 dims  norm 8.062  3 tokens",
    ]
    assert result.stderr == ""


@pytest.mark.parametrize("args", [[], ["-"]])
def test_texts_on_stdin(fake: FakeMesh, args: list[str]) -> None:
    result = shoal(fake, "encode", *args, "--json", stdin="7\n8 \r\nä")
    assert result.exit_code == 0
    assert [item.text for item in fake.heard[0].request.items] == ["7", "8 ", "ä"]


def test_json(fake: FakeMesh) -> None:
    result = shoal(fake, "encode", "7", "", "--json", "--dimensions", "3")
    good, bad = (json.loads(line) for line in result.stdout.splitlines())
    assert good == {
        "id": None,
        "index": 0,
        "vector": [7, 1, 0],
        "input_tokens": 3,
        "used_tokens": 3,
        "truncated": False,
    }
    assert bad == {
        "id": None,
        "index": 1,
        "error": {
            "code": "INVALID_ARGUMENT",
            "reason": "ITEM_EMPTY",
            "message": "the text has no token of its own",
        },
    }
    assert result.stderr == "shoal: 1 of 2 texts failed\n"
    assert result.exit_code == 3


def test_jsonl_and_out(fake: FakeMesh, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"id": f"n{number}", "text": str(number)}) for number in range(500)]
    lines[3:3] = ["", '"1000"']
    texts.write_text("\n".join(lines))
    out = tmp_path / "vectors.npy"
    result = shoal(fake, "encode", "--file", str(texts), "--out", str(out), "--json")
    assert result.exit_code == 0
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["index"] for line in printed] == list(range(501))
    assert [line["id"] for line in printed[2:5]] == ["n2", None, "n3"]
    vectors = np.load(out)
    assert vectors.shape == (501, DIMENSIONS)
    assert vectors[:, 0].tolist() == [0, 1, 2, 1000, *range(3, 500)]
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl", "vectors.npy"}


def test_out_alone_prints_one_line(fake: FakeMesh, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    result = shoal(fake, "encode", "7", "", "-o", str(out), "--type", "f16")
    assert result.exit_code == 3
    assert result.stdout == f"wrote {out}: 2 x 384 float16\n"
    assert result.stderr.splitlines() == [
        "shoal: text 1: ITEM_EMPTY: the text has no token of its own",
        "shoal: 1 of 2 texts failed",
    ]
    assert np.isnan(np.load(out)[1]).all()


def test_no_texts_at_all(fake: FakeMesh, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    assert shoal(fake, "encode", "--out", str(out)).exit_code == 0
    assert np.load(out).shape == (0, DIMENSIONS)


def test_call_errors(fake: FakeMesh, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    out.write_text("old")
    info = error_details_pb2.ErrorInfo(reason="MODEL_UNKNOWN", metadata={"near": "minilm"})
    fake.faults.append(status(grpc.StatusCode.NOT_FOUND, "no model 'minlm'\nhere", info))
    result = shoal(fake, "encode", "7", "--model", "minlm", "--out", str(out))
    assert result.exit_code == 1
    assert result.stderr == "shoal: no model 'minlm' here (did you mean minilm?)\n"
    assert result.stdout == ""
    assert out.read_text() == "old"


def test_nobody_there() -> None:
    result = CliRunner().invoke(app, ["encode", "x", "--target", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr == "shoal: no mesh answers at 127.0.0.1:1 (is `shoal up` running?)\n"


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        (["--type", "f64", "x"], "", "f64"),
        (["--timeout", "nan", "x"], "", "timeout is nan"),
        (["--target", "nowhere", "x"], "", 'it is "host:port" or "unix:/path"'),
        (["x", "--file", "-"], "", "not both"),
        (["x", "--out", "/nowhere/v.npy"], "", "there is no folder /nowhere"),
        (["--file", "/nowhere/texts"], "", "/nowhere/texts: No such file or directory"),
        ([], b"a\n\xff", "stdin, line 2 is not UTF-8 (byte 1)"),
        (["--file", "-"], '"a"\n{', "stdin, line 2 is not JSON"),
        (["--file", "-"], '"a"\n\n{"id": "b"}', 'stdin, line 3 is neither a string nor an object with a string "text"'),
        (["--file", "-"], '{"text": "a", "id": [1]}', "line 1 has an"),
        (["--file", "-"], r'"\ud800"', "texts[0] has a lone surrogate"),
        (["a\udcff"], "", "texts[0] has a lone surrogate"),
    ],
)
def test_wrong_usage(fake: FakeMesh, args: list[str], stdin: str | bytes, message: str) -> None:
    result = shoal(fake, "encode", *args, stdin=stdin)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert fake.heard == []


def test_options_reach_the_mesh(fake: FakeMesh) -> None:
    args = "--role query --truncation error --max-tokens 9 --priority bulk --no-normalize --type int8 --token t".split()
    assert shoal(fake, "encode", "1", *args).exit_code == 0
    request = fake.heard[0].request
    assert request.options == inference_pb2.EncodeOptions(
        type=inference_pb2.ELEMENT_TYPE_INT8,
        normalize=False,
        role=inference_pb2.ENCODE_ROLE_QUERY,
        truncation=inference_pb2.TRUNCATION_ERROR,
        max_tokens=9,
    )
    assert request.priority == inference_pb2.PRIORITY_BULK
    assert fake.heard[0].metadata["authorization"] == "Bearer t"
