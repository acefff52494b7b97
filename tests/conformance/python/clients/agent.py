"""The published `AgentClient`, with messages instead of bytes."""

from __future__ import annotations

import contextlib
from typing import Any, AsyncIterator, Awaitable

from .agentd import Agentd
from .messages import BULK, Message, Record, decode, encode, flags_of
from .relay import Sandbox
from .release import CLIENT


class Agent:
    """One connection of the published client to an agentd."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.ready = decode({"body": client.ready_bytes(), "flags": 0})
        self.negotiated = CLIENT.negotiated(self.ready.generation)
        # From generation 10 on a client has to acknowledge output, if agentd announced what it limits.
        limits = self.ready.payload.get("exec_limits")
        self.exec_limits = limits if self.negotiated >= 10 else None

    async def ask(self, kind: str, payload: Any = None, flags: int | None = None) -> Message | Record:
        """Sends a message under a new id, and returns the first answer."""
        return decode(await self.ask_bytes(self.encode(kind, payload), flags_of(kind) if flags is None else flags))

    async def ask_bytes(self, body: bytes, flags: int) -> dict[str, Any]:
        return await self.client.request(flags, body)

    async def open(self, kind: str, payload: Any = None) -> "Stream":
        """Sends a message under a new id, and returns the stream of answers."""
        return Stream(self, await self.client.stream(flags_of(kind), self.encode(kind, payload)))

    async def check_alive(self) -> None:
        """Checks that the connection works. Everything that agentd sent before has been delivered when it returns."""
        if self.negotiated >= 6:
            pong = await self.ask("core.ping")
            assert (pong.type, pong.payload) == ("core.pong", {})
        else:
            stream = await self.open("core.exec.request", {"cmd": "true"})
            kinds = [message.type async for message in stream]
            assert kinds == ["core.exec.started", "core.exec.exited"], kinds

    def encode(self, kind: str, payload: Any = None) -> bytes:
        """Every release stamps its own generation, whatever was agreed in the handshake."""
        return encode(CLIENT.generation, kind, {} if payload is None else payload)


class Stream:
    """The frames of one id in both directions."""

    def __init__(self, agent: Agent, stream: Any) -> None:
        self.agent = agent
        self.id: int = stream.id
        self._stream = stream

    async def send(self, kind: str, payload: Any = None, flags: int | None = None) -> None:
        body = self.agent.encode(kind, payload)
        await self.agent.client.send(self.id, flags_of(kind) if flags is None else flags, body)

    async def send_record(self, record: Record) -> None:
        await self.agent.client.send(self.id, BULK, record.encode())

    async def next(self) -> Message | Record | None:
        frame = await self._stream.next()
        if frame is None:
            return None
        assert frame["id"] == self.id
        return decode(frame)

    async def expect(self, kind: str) -> Any:
        """The payload of the next message, which must be of this type."""
        message = await self.next()
        assert isinstance(message, Message) and message.type == kind, f"expected {kind}, got {message}"
        return message.payload

    async def __aiter__(self) -> AsyncIterator[Message | Record]:
        while (message := await self.next()) is not None:
            yield message


@contextlib.asynccontextmanager
async def connected(agentd: Agentd | Sandbox) -> AsyncIterator[Agent]:
    """A client that is closed at the end of the block."""
    # Not at the top: the legacy release does not have this module.
    from microsandbox.agent import AgentClient

    async with using(AgentClient.connect(agentd.socket)) as agent:
        yield agent


@contextlib.asynccontextmanager
async def using(connecting: Awaitable[Any]) -> AsyncIterator[Agent]:
    """A client from another connect method, which is closed at the end of the block."""
    client = await connecting
    try:
        yield Agent(client)
    finally:
        await client.close()
