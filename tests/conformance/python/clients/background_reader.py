"""Reads a stream in the background and notifies waiting tests."""

from __future__ import annotations

import asyncio
from typing import Any, Callable

from .agent import Stream
from .messages import Message, Record


class BackgroundReader:
    """Handles each message when it arrives, so that the stream never waits for the test."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.ended: tuple[str, dict[str, Any]] | None = None
        self._changed = asyncio.Condition()
        self._closed = False
        self._task = asyncio.create_task(self._read())
        # Its exception is raised where the test waits, and must not be logged as unhandled.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def handle(self, message: Message | Record) -> None:
        """Handles one message."""
        raise NotImplementedError

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits until messages of the stream make a condition true."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition() or self._closed)
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
                await self.handle(message)
                async with self._changed:
                    self._changed.notify_all()
        finally:
            self._closed = True
            async with self._changed:
                self._changed.notify_all()
