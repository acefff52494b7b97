"""The bodies of frames: envelopes in CBOR, and raw bulk records. The published client carries them unread."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import cbor2

TERMINAL, SESSION_START, SHUTDOWN, BULK = 1, 2, 4, 8

ENDS = {
    "core.pong",
    "core.touched",
    "core.error",
    "core.exec.exited",
    "core.exec.failed",
    "core.fs.response",
    "core.tcp.closed",
    "core.tcp.failed",
}
STARTS = {"core.exec.request", "core.fs.request", "core.tcp.connect"}

# The kind and the flow of bulk records.
FILES, TCP = 1, 2
TO_GUEST, TO_HOST = 1, 2
RECORD = struct.Struct(">BBHQ")


@dataclass(frozen=True)
class Message:
    """A decoded envelope."""

    type: str
    payload: Any
    generation: int
    flags: int


@dataclass(frozen=True)
class Record:
    """A raw bulk record."""

    kind: int
    flow: int
    offset: int
    data: bytes

    def encode(self) -> bytes:
        return RECORD.pack(self.kind, self.flow, 0, self.offset) + self.data


def flags_of(kind: str) -> int:
    """The flags that a message of this type must have."""
    return TERMINAL if kind in ENDS else SESSION_START if kind in STARTS else 0


def encode(generation: int, kind: str, payload: Any) -> bytes:
    return cbor2.dumps({"v": generation, "t": kind, "p": cbor2.dumps(payload)})


def decode(frame: dict[str, Any]) -> Message | Record:
    """Decodes a frame of agentd, and checks that it is canonical and has the flags of its type."""
    body, flags = frame["body"], frame["flags"]
    if flags == BULK:
        kind, flow, reserved, offset = RECORD.unpack_from(body)
        assert reserved == 0 and len(body) > RECORD.size
        return Record(kind, flow, offset, body[RECORD.size :])
    envelope = cbor2.loads(body)
    assert list(envelope) == ["v", "t", "p"] and type(envelope["p"]) is bytes
    payload = cbor2.loads(envelope["p"])
    assert cbor2.dumps(envelope) == body, "the envelope is not in its shortest form"
    assert cbor2.dumps(payload) == envelope["p"], "the payload is not in its shortest form"
    assert flags == flags_of(envelope["t"]), f"{envelope['t']} came with flags {flags}"
    return Message(envelope["t"], payload, envelope["v"], flags)
