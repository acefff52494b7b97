"""A named pipe that is inside a sandbox too, so that nobody has to wait by the clock.

A command says something into it, and whoever waits wakes up. A command that keeps it open is known to be dead, with
everything that it started, once it comes to its end.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

MODE = 0o666


class Pipe:
    """The end of a named pipe that the test reads. One that is `held` has no end: those who write to it come and go."""

    def __init__(self, path: Path, *, held: bool = False) -> None:
        os.mkfifo(path)
        # Whatever the test takes from new files, the user inside may write.
        path.chmod(MODE)
        self.path = path
        self._end = os.open(path, (os.O_RDWR if held else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
        self._said = b""

    def close(self) -> None:
        os.close(self._end)

    async def line(self) -> str:
        """The next line that somebody says."""
        while b"\n" not in self._said:
            await self._readable()
            said = os.read(self._end, 4096)
            assert said, f"all who had it open are gone after {self._said!r}"
            self._said += said
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    async def end(self) -> bytes:
        """What is said until all who have it open are gone."""
        while True:
            await self._readable()
            said = os.read(self._end, 4096)
            if not said:
                said, self._said = self._said, b""
                return said
            self._said += said

    def is_at_its_end(self) -> bool:
        """Whether all who had it open are gone, at this moment."""
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
    """A named pipe at which a command waits until the test lets it through."""

    def __init__(self, directory: Path, name: str = "gate") -> None:
        self.path = directory / name
        os.mkfifo(self.path)
        self.path.chmod(MODE)
        # What a script waits with, where the directory is shown at its usual place.
        self.wait = f"read line < /shared/{name}"

    async def open(self) -> None:
        """Lets a command through; waits until there is one."""
        pipe = await asyncio.to_thread(os.open, self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(pipe, b"on\n")
        finally:
            os.close(pipe)
