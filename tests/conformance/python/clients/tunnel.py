"""A TCP connection through the raw client: data inside messages, or bulk records with credit from generation 8 on."""

from __future__ import annotations

from typing import Any

from .agent import Agent, Stream
from .background_reader import BackgroundReader
from .messages import TCP, TO_GUEST, TO_HOST, Message, Record

WINDOW = 256 << 10


class Tunnel(BackgroundReader):
    """An open connection, which grants credit for the data that it received."""

    def __init__(self, stream: Stream, bulk: bool) -> None:
        super().__init__(stream)
        self._bulk = bulk
        self._sent = 0
        self._limit = 0
        self._record_size = 0
        self._granted = WINDOW
        self.connected = False
        self.received = bytearray()
        self.credits = 0
        self.peer_ended = False

    @classmethod
    async def open(cls, agent: Agent, port: int, host: str = "127.0.0.1", *, bulk: bool | None = None) -> "Tunnel":
        """Requests a connection, and waits until it is open or has failed."""
        bulk = agent.negotiated >= 8 if bulk is None else bulk
        request: dict[str, Any] = {"host": host, "port": port}
        if bulk:
            request["bulk"] = {"format": 1, "max_record_payload": 64 << 10, "guest_to_host_credit_limit": WINDOW}
        tunnel = cls(await agent.open("core.tcp.connect", request), bulk)
        await tunnel.until(lambda: tunnel.ended or (tunnel.connected and (tunnel._limit or not bulk)))
        return tunnel

    async def send(self, data: bytes) -> None:
        if not self._bulk:
            for start in range(0, len(data), 64 << 10):
                await self.stream.send("core.tcp.data", {"data": data[start : start + (64 << 10)]})
            return
        start = 0
        while start < len(data):
            await self.until(lambda: self._limit > self._sent)
            chunk = data[start : start + min(self._record_size, self._limit - self._sent)]
            record = Record(TCP, TO_GUEST, self._sent, chunk)
            self._sent += len(chunk)
            start += len(chunk)
            await self.stream.send_record(record)

    async def end(self) -> None:
        """Closes our half; the other stays open."""
        if self._bulk:
            finish = {"kind": TCP, "flow": TO_GUEST, "final_offset": self._sent}
            await self.stream.send("core.bulk.finish", finish)
        else:
            await self.stream.send("core.tcp.eof")

    async def abort(self) -> None:
        await self.stream.send("core.tcp.close")

    async def finish(self) -> bytes:
        """Waits until both halves are closed, and returns all received data."""
        ended = await self.until_ended()
        assert ended == ("core.tcp.closed", {}) and self.peer_ended, ended
        return bytes(self.received)

    async def handle(self, message: Message | Record) -> None:
        if isinstance(message, Record):
            await self._take_record(message)
        else:
            self._take_message(message.type, message.payload)

    async def _take_record(self, record: Record) -> None:
        assert self._bulk and not self.peer_ended
        assert (record.kind, record.flow, record.offset) == (TCP, TO_HOST, len(self.received))
        self.received += record.data
        assert len(self.received) <= self._granted, "agentd sent more than it had credit for"
        if len(self.received) == self._granted:
            self._granted += WINDOW
            credit = {"kind": TCP, "flow": TO_HOST, "consumed_offset": len(self.received)}
            await self.stream.send("core.bulk.credit", credit | {"credit_limit": self._granted})

    def _take_message(self, kind: str, payload: dict[str, Any]) -> None:
        if kind in ("core.tcp.closed", "core.tcp.failed"):
            self.ended = (kind, payload)
        elif kind == "core.tcp.connected":
            assert payload == {} and not self.connected
            self.connected = True
        elif kind == "core.bulk.accepted":
            assert self.connected and self._bulk
            self._limit, self._record_size = payload["host_to_guest_credit_limit"], payload["max_record_payload"]
            assert payload == {
                "kind": TCP,
                "flows": TO_GUEST | TO_HOST,
                "format": 1,
                "max_record_payload": self._record_size,
                "host_to_guest_credit_limit": self._limit,
                "guest_to_host_credit_limit": WINDOW,
            }
            assert 16 << 10 <= self._record_size <= 64 << 10 and 0 < self._limit <= 32 << 20
        elif kind == "core.bulk.credit":
            assert (payload["kind"], payload["flow"]) == (TCP, TO_GUEST)
            assert payload["consumed_offset"] <= self._sent and payload["credit_limit"] > self._limit
            self._limit = payload["credit_limit"]
            self.credits += 1
        elif kind == "core.bulk.finish":
            assert payload == {"kind": TCP, "flow": TO_HOST, "final_offset": len(self.received)}
            self.peer_ended = True
        elif kind == "core.tcp.eof":
            assert not self._bulk and payload == {}
            self.peer_ended = True
        else:
            assert kind == "core.tcp.data" and not self._bulk and not self.peer_ended, kind
            self.received += payload["data"]
