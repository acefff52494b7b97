"""Waits for the exit of processes that the test did not start itself."""

from __future__ import annotations

import asyncio
import os


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
