"""Files through the raw client: data inside messages up to generation 7, bulk records with credit from 8 on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .agent import Agent, Stream
from .messages import FILES, TO_GUEST, TO_HOST, Record

WINDOW = 1 << 20
INLINE_CHUNK = 1 << 20


class FileOperationError(Exception):
    """The agent refused an operation, with this message."""


@dataclass
class Transfer:
    """A transferred file: its bytes, and the numbers of messages."""

    data: bytearray = field(default_factory=bytearray)
    messages: int = 0
    records: int = 0
    credits: int = 0


class Files:
    """The file operations of one connection."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.bulk = agent.negotiated >= 8

    async def do(self, op: str, **fields: Any) -> Any:
        """An operation that is answered with one message."""
        answer = await self._agent.ask("core.fs.request", {"op": {op: fields}})
        assert answer.type == "core.fs.response", answer
        return result(answer.payload)

    async def stat(self, path: str, follow: bool = True) -> dict[str, Any]:
        return (await self.do("Stat", path=path, follow_symlink=follow))["Stat"]

    async def list(self, path: str) -> list[dict[str, Any]]:
        return (await self.do("List", path=path))["List"]

    async def open(self, path: str, *modes: str, mode: int | None = None) -> int:
        """Opens a file `read`, `write`, … and returns its handle."""
        names = ("read", "write", "append", "create", "truncate", "create_new")
        options = {name: name in modes for name in names} | {"mode": mode, "user": None}
        return (await self.do("OpenFile", path=path, options=options))["Handle"]

    async def close(self, handle: int) -> None:
        assert await self.do("CloseHandle", handle=handle) is None

    async def write(self, handle: int, data: bytes, offset: int = 0, declared: int | None = None) -> Transfer:
        """Writes a stream into an open file. `declared` is the length that the request promises."""
        request = {"op": {"Write": {"handle": handle, "offset": offset, "len": declared}}}
        if not self.bulk:
            stream = await self._agent.open("core.fs.request", request)
            return await self._write_inline(stream, data)
        # A writer receives no data, so it offers no credit.
        request["bulk"] = {"format": 1, "max_record_payload": 256 << 10, "guest_to_host_credit_limit": 0}
        stream = await self._agent.open("core.fs.request", request)
        return await self._write_records(stream, data)

    async def read(
        self, handle: int, offset: int = 0, length: int | None = None, *, window: int = WINDOW, offer: bool = True
    ) -> Transfer:
        """Reads a stream from an open file. Without an `offer` it is sent in messages at every generation."""
        request = {"op": {"Read": {"handle": handle, "offset": offset, "len": length}}}
        if not self.bulk or not offer:
            return await self._read_inline(await self._agent.open("core.fs.request", request))
        request["bulk"] = {"format": 1, "max_record_payload": 256 << 10, "guest_to_host_credit_limit": window}
        stream = await self._agent.open("core.fs.request", request)
        return await self._read_records(stream, window)

    async def _write_inline(self, stream: Stream, data: bytes) -> Transfer:
        transfer = Transfer()
        for start in range(0, len(data), INLINE_CHUNK):
            transfer.messages += 1
            await stream.send("core.fs.data", {"data": data[start : start + INLINE_CHUNK]})
        await stream.send("core.fs.data", {"data": b""})
        assert result(await stream.expect("core.fs.response")) is None
        return transfer

    async def _read_inline(self, stream: Stream) -> Transfer:
        transfer = Transfer()
        async for message in stream:
            if message.type == "core.fs.response":
                assert result(message.payload) is None
                break
            assert message.type == "core.fs.data" and message.payload["data"], message
            transfer.messages += 1
            transfer.data += message.payload["data"]
        return transfer

    async def _write_records(self, stream: Stream, data: bytes) -> Transfer:
        accepted = await bulk_accepted(stream)
        limit, size = accepted["host_to_guest_credit_limit"], accepted["max_record_payload"]
        assert accepted == {
            "kind": FILES,
            "flows": TO_GUEST,
            "format": 1,
            "max_record_payload": size,
            "host_to_guest_credit_limit": limit,
            "guest_to_host_credit_limit": 0,
        }
        assert 16 << 10 <= size <= 256 << 10 and 0 < limit <= 32 << 20
        transfer, offset = Transfer(), 0
        while offset < len(data):
            if offset == limit:
                limit = await self._next_credit(stream, transfer, offset, limit)
            chunk = data[offset : min(offset + size, limit)]
            await stream.send_record(Record(FILES, TO_GUEST, offset, chunk))
            transfer.records += 1
            offset += len(chunk)
        await stream.send("core.bulk.finish", {"kind": FILES, "flow": TO_GUEST, "final_offset": offset})
        async for message in stream:
            if message.type == "core.fs.response":
                assert result(message.payload) is None
                break
            assert message.type == "core.bulk.credit", message
        return transfer

    @staticmethod
    async def _next_credit(stream: Stream, transfer: Transfer, sent: int, limit: int) -> int:
        credit = await stream.expect("core.bulk.credit")
        assert list(credit) == ["kind", "flow", "consumed_offset", "credit_limit"]
        assert (credit["kind"], credit["flow"]) == (FILES, TO_GUEST)
        assert credit["consumed_offset"] <= sent and credit["credit_limit"] > limit
        transfer.credits += 1
        return credit["credit_limit"]

    async def _read_records(self, stream: Stream, window: int) -> Transfer:
        accepted = await bulk_accepted(stream)
        assert accepted == {
            "kind": FILES,
            "flows": TO_HOST,
            "format": 1,
            "max_record_payload": accepted["max_record_payload"],
            "host_to_guest_credit_limit": 0,
            "guest_to_host_credit_limit": window,
        }
        assert 16 << 10 <= accepted["max_record_payload"] <= 256 << 10
        transfer, limit = Transfer(), window
        while isinstance(message := await stream.next(), Record):
            assert (message.kind, message.flow, message.offset) == (FILES, TO_HOST, len(transfer.data))
            assert len(message.data) <= accepted["max_record_payload"]
            transfer.records += 1
            transfer.data += message.data
            consumed = len(transfer.data)
            assert consumed <= limit, "agentd sent more than it had credit for"
            # Credit is granted only when all is used up, so that one byte too many is detected.
            if consumed == limit:
                limit += window
                transfer.credits += 1
                credit = {"kind": FILES, "flow": TO_HOST, "consumed_offset": consumed, "credit_limit": limit}
                await stream.send("core.bulk.credit", credit)
        assert message.type == "core.bulk.finish", message
        assert message.payload == {"kind": FILES, "flow": TO_HOST, "final_offset": len(transfer.data)}
        assert result(await stream.expect("core.fs.response")) is None
        return transfer


async def bulk_accepted(stream: Stream) -> dict[str, Any]:
    message = await stream.next()
    if message.type == "core.fs.response":
        result(message.payload)
    assert message.type == "core.bulk.accepted", message
    return message.payload


def result(response: dict[str, Any]) -> Any:
    """The data of a response, or `FileOperationError` with its text."""
    if response["ok"]:
        assert response["error"] is None
        return response["data"]
    assert response["data"] is None and response["error"]
    raise FileOperationError(response["error"])


async def put(agent: Agent, path: str, data: bytes, mode: int | None = None) -> Transfer:
    """Writes a whole file, as the package does: open, write with its length, close."""
    files = Files(agent)
    handle = await files.open(path, "write", "create", "truncate", mode=mode)
    transfer = await files.write(handle, data, declared=len(data))
    await files.close(handle)
    return transfer


async def get(agent: Agent, path: str) -> Transfer:
    """Reads a whole file."""
    files = Files(agent)
    handle = await files.open(path, "read")
    transfer = await files.read(handle)
    await files.close(handle)
    return transfer
