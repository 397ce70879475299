"""Lints protos/ by buf's STANDARD rules.

    python tools/lint_protos.py

buf resolves google/rpc only from an image, so protoc makes one first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from generate_stubs import ROOT, include_paths, proto_files
from grpc_tools import protoc


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        image = Path(scratch) / "image.binpb"
        arguments = ["protoc", f"-I{ROOT / 'protos'}", *(f"-I{path}" for path in include_paths())]
        arguments += ["--include_imports", "--include_source_info", "--retain_options", f"-o{image}"]
        if protoc.main(arguments + proto_files()) != 0:
            return 1
        buf = Path(sys.executable).with_name("buf")
        return subprocess.run(
            [str(buf), "lint", str(image), "--config", str(ROOT / "buf.yaml")], cwd=scratch
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
