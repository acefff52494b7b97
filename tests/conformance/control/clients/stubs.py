"""The stubs, made from the description of the API in this repository when they are first asked for."""

from __future__ import annotations

import atexit
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[4]


def _make() -> None:
    made = tempfile.TemporaryDirectory(prefix="carrel-stubs-")
    atexit.register(made.cleanup)
    # The name of the file in the descriptor is `service.proto`, as in that of published clients.
    command = ["protoc", f"-I{ROOT}/proto/agbox/v1", f"-I{Path(grpc_tools.__file__).parent}/_proto"]
    command += [f"--python_out={made.name}", f"--grpc_python_out={made.name}", "service.proto"]
    assert protoc.main(command) == 0, command
    sys.path.insert(0, made.name)


_make()

import service_pb2 as messages  # noqa: E402
import service_pb2_grpc as services  # noqa: E402

__all__ = ["messages", "services"]
