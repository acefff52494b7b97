"""Waits for the end of processes that the test did not start itself."""

from __future__ import annotations

import asyncio
import os


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
