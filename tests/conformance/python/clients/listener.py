"""Reads a stream in the background and wakes whoever waits for what it brings."""

from __future__ import annotations

import asyncio
from typing import Any, Callable

from .agent import Stream
from .messages import Message, Record


class Listener:
    """Takes each message as it comes, so that nothing waits for the test."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.ended: tuple[str, dict[str, Any]] | None = None
        self._changed = asyncio.Condition()
        self._over = False
        self._task = asyncio.create_task(self._read())
        # What goes wrong in it is raised where the test waits; nobody else should hear of it.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def take(self, message: Message | Record) -> None:
        """Does what a message asks for."""
        raise NotImplementedError

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits for something that the stream brings."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition() or self._over)
        if not condition():
            await self._task
            raise AssertionError(f"the stream ended first, with {self.ended}")

    async def until_ended(self) -> tuple[str, dict[str, Any]] | None:
        """Waits for the last message."""
        await self._task
        return self.ended

    async def _read(self) -> None:
        try:
            async for message in self.stream:
                assert self.ended is None, f"{message} after {self.ended}"
                await self.take(message)
                async with self._changed:
                    self._changed.notify_all()
        finally:
            self._over = True
            async with self._changed:
                self._changed.notify_all()
