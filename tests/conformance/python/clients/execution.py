"""A command run through the raw client, with the acknowledgements that generation 10 asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .agent import Agent, Stream
from .background_reader import BackgroundReader
from .messages import Message, Record

# The overhead of a chunk in the output window.
CHUNK_OVERHEAD = 256


@dataclass(frozen=True)
class Outcome:
    """The output and exit of a command."""

    stdout: bytes
    stderr: bytes
    exited: dict[str, Any]


class Execution(BackgroundReader):
    """A running command."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._limits = stream.agent.exec_limits
        self._sent = 0
        self._written = 0
        self.acknowledging = True
        self.pid = 0
        self.charged = 0
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.input_errors: list[dict[str, Any]] = []

    @classmethod
    async def start(cls, agent: Agent, cmd: str, *args: str, **options: Any) -> "Execution":
        """Starts a command; all nine keys are sent, as the package's own code does."""
        request = {"cmd": cmd, "args": list(args), "env": [], "cwd": None, "user": None, "tty": False}
        request |= {"rows": 24, "cols": 80, "rlimits": []} | options
        assert len(request) == 9
        execution = cls(await agent.open("core.exec.request", request))
        await execution.until(lambda: execution.pid or execution.ended)
        return execution

    async def write(self, data: bytes) -> None:
        """Writes to the standard input, within the flow control of agentd."""
        size = self._limits["stdin_chunk_size"] if self._limits else 65536
        for start in range(0, len(data), size):
            chunk = data[start : start + size]
            self._sent += len(chunk)
            if self._limits:
                await self.until(lambda: self._sent - self._written <= self._limits["input_limit"] or self.ended)
            await self.stream.send("core.exec.stdin", {"data": chunk})

    async def end_input(self) -> None:
        await self.stream.send("core.exec.stdin", {"data": b""})

    async def signal(self, number: int) -> None:
        await self.stream.send("core.exec.signal", {"signal": number})

    async def resize(self, rows: int, cols: int) -> None:
        await self.stream.send("core.exec.resize", {"rows": rows, "cols": cols})

    async def acknowledge(self) -> None:
        """Acknowledges all output so far, and all that follows."""
        self.acknowledging = True
        await self.stream.send("core.exec.output.ack", {"consumed": self.charged})

    async def finish(self) -> Outcome:
        """Waits for the last message, which must be an exit."""
        ended = await self.until_ended()
        assert ended and ended[0] == "core.exec.exited", ended
        return Outcome(bytes(self.stdout), bytes(self.stderr), ended[1])

    async def failure(self) -> dict[str, Any]:
        """Waits for the last message, which must be a failure to start."""
        ended = await self.until_ended()
        assert ended and ended[0] == "core.exec.failed" and not self.pid, ended
        return ended[1]

    async def handle(self, message: Message | Record) -> None:
        kind, payload = message.type, message.payload
        if kind == "core.exec.started":
            assert not self.pid
            self.pid = payload["pid"]
        elif kind in ("core.exec.stdout", "core.exec.stderr"):
            assert self.pid and payload["data"]
            (self.stdout if kind == "core.exec.stdout" else self.stderr).extend(payload["data"])
            await self._charge(len(payload["data"]))
        elif kind == "core.exec.stdin.ack":
            assert self._limits and self._written < payload["consumed"] <= self._sent
            self._written = payload["consumed"]
        elif kind == "core.exec.stdin.error":
            self.input_errors.append(payload)
        else:
            self.ended = (kind, payload)

    async def _charge(self, size: int) -> None:
        self.charged += size + CHUNK_OVERHEAD
        if self._limits:
            assert size <= self._limits["output_chunk_size"]
            if self.acknowledging:
                await self.stream.send("core.exec.output.ack", {"consumed": self.charged})


async def run(agent: Agent, cmd: str, *args: str, stdin: bytes | None = None, **options: Any) -> Outcome:
    """Runs a command to its end."""
    execution = await Execution.start(agent, cmd, *args, **options)
    if stdin is not None:
        await execution.write(stdin)
    await execution.end_input()
    return await execution.finish()
