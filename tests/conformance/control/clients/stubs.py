"""The stubs, generated from the API description in this repository at the first import."""

from __future__ import annotations

import atexit
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[4]


def _generate() -> None:
    made = tempfile.TemporaryDirectory(prefix="carrel-stubs-")
    atexit.register(made.cleanup)
    # The descriptor names its file `service.proto`, as in published clients.
    command = ["protoc", f"-I{ROOT}/proto/agbox/v1", f"-I{Path(grpc_tools.__file__).parent}/_proto"]
    command += [f"--python_out={made.name}", f"--grpc_python_out={made.name}", "service.proto"]
    assert protoc.main(command) == 0, command
    sys.path.insert(0, made.name)


_generate()

import service_pb2 as messages  # noqa: E402
import service_pb2_grpc as services  # noqa: E402

__all__ = ["messages", "services"]
