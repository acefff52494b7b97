"""Processes that the test did not start itself: who they are, and when they have ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path


class Watched:
    """A process that is known by its handle, so that no later process can be taken for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    async def ended(self) -> None:
        """Waits until the process has ended; the handle becomes readable then."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._handle, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(self._handle)
            os.close(self._handle)


def using(directory: Path) -> list[int]:
    """The processes that have something below a directory open, or are in it."""
    return [pid for pid in _all() if _uses(pid, f"{directory}/")]


def command(pid: int) -> str:
    """What a process runs, for people."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _uses(pid: int, prefix: str) -> bool:
    # A process may end while it is looked at.
    with contextlib.suppress(OSError):
        links = [f"/proc/{pid}/cwd", *(f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd"))]
        for link in links:
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(prefix):
                    return True
    return False
