"""Errors of the daemon by their reason. The names are those of the published client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

DOMAIN = "agents-sandbox"


@dataclass
class SandboxClientError(Exception):
    """A refused call, or a wait that did not complete."""

    message: str
    code: Any = None
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.code} {self.reason}: {self.message} {self.metadata}"

    @property
    def sandbox_id(self) -> str | None:
        return self.metadata.get("sandbox_id")

    @property
    def exec_id(self) -> str | None:
        return self.metadata.get("exec_id")

    @property
    def from_sequence(self) -> int:
        return int(self.metadata["from_sequence"])


class SandboxConflictError(SandboxClientError):
    """The id is already used."""


class SandboxNotFoundError(SandboxClientError):
    """The sandbox does not exist."""


class SandboxNotReadyError(SandboxClientError):
    """A command needs a sandbox that is ready."""


class SandboxInvalidStateError(SandboxClientError):
    """The sandbox is in the wrong state."""


class ExecNotFoundError(SandboxClientError):
    """The exec does not exist."""


class ExecAlreadyTerminalError(SandboxClientError):
    """The exec has already ended."""


class ExecNotRunningError(SandboxInvalidStateError):
    """The exec is not running."""


class SandboxSequenceExpiredError(SandboxClientError):
    """The log does not have this sequence."""


BY_REASON = {
    "SANDBOX_CONFLICT": SandboxConflictError,
    "SANDBOX_ID_ALREADY_EXISTS": SandboxConflictError,
    "EXEC_ID_ALREADY_EXISTS": SandboxConflictError,
    "SANDBOX_NOT_FOUND": SandboxNotFoundError,
    "SANDBOX_NOT_READY": SandboxNotReadyError,
    "SANDBOX_INVALID_STATE": SandboxInvalidStateError,
    "EXEC_NOT_FOUND": ExecNotFoundError,
    "EXEC_ALREADY_TERMINAL": ExecAlreadyTerminalError,
    "EXEC_NOT_RUNNING": ExecNotRunningError,
    "SANDBOX_EVENT_SEQUENCE_EXPIRED": SandboxSequenceExpiredError,
}


def translated(error: grpc.RpcError) -> SandboxClientError:
    """The error of a call. It is strict: details that differ from the trailer fail the test."""
    # This raises if code or message in the details differ from the trailer.
    status = rpc_status.from_call(error)
    if status is None:
        return SandboxClientError(error.details() or "", error.code())
    (detail,) = status.details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info), detail.type_url
    assert info.domain == DOMAIN, info.domain
    assert info.reason, info
    kind = BY_REASON.get(info.reason, SandboxClientError)
    return kind(status.message, error.code(), info.reason, dict(info.metadata))
