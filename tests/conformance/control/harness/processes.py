"""Processes that the test did not start itself: how to find them, and wait for their exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path


class WatchedProcess:
    """A process with its pidfd, so that a reused pid is not mistaken for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    async def wait(self) -> None:
        """Waits until the process has exited, when the pidfd becomes readable."""
        loop, exited = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pidfd, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)


def using(directory: Path) -> list[int]:
    """The processes that have a file or their working directory below a directory."""
    return [pid for pid in _all() if _uses(pid, f"{directory}/")]


def command(pid: int) -> str:
    """The command line of a process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _uses(pid: int, prefix: str) -> bool:
    # A process may exit meanwhile.
    with contextlib.suppress(OSError):
        links = [f"/proc/{pid}/cwd", *(f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd"))]
        for link in links:
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(prefix):
                    return True
    return False
