"""Named pipes that are mounted into a sandbox, so that no test has to sleep.

A command writes a line, and the test wakes up. At the end of file, every process that had the pipe open has exited.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

MODE = 0o666


class Pipe:
    """The read end of a named pipe. With `keep_open` it has no end of file: writers may come and go."""

    def __init__(self, path: Path, *, keep_open: bool = False) -> None:
        os.mkfifo(path)
        # Whatever the umask is, the user inside may write.
        path.chmod(MODE)
        self.path = path
        self._end = os.open(path, (os.O_RDWR if keep_open else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
        self._buffer = b""

    def close(self) -> None:
        os.close(self._end)

    async def line(self) -> str:
        """The next line."""
        while b"\n" not in self._buffer:
            await self._readable()
            data = os.read(self._end, 4096)
            assert data, f"all writers have closed it after {self._buffer!r}"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    async def end(self) -> bytes:
        """Everything up to the end of file."""
        while True:
            await self._readable()
            data = os.read(self._end, 4096)
            if not data:
                data, self._buffer = self._buffer, b""
                return data
            self._buffer += data

    def is_at_eof(self) -> bool:
        """Whether all writers have closed it."""
        try:
            return os.read(self._end, 1) == b""
        except BlockingIOError:
            return False

    async def _readable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._end, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._end)


class Gate:
    """A named pipe on which a command waits until the test opens it."""

    def __init__(self, directory: Path, name: str = "gate") -> None:
        self.path = directory / name
        os.mkfifo(self.path)
        self.path.chmod(MODE)
        # The command with which a script waits, if the directory is mounted at `/shared`.
        self.wait = f"read line < /shared/{name}"

    async def open(self) -> None:
        """Releases a command; waits until there is one."""
        pipe = await asyncio.to_thread(os.open, self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(pipe, b"on\n")
        finally:
            os.close(pipe)
