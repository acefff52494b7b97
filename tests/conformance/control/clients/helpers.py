"""Helpers for most tests: create a sandbox, run a command in it, read its events."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from .enums import EventType

IMAGE = "host"


def new_id(prefix: str = "sandbox") -> str:
    """A new unique id."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def new_sandbox(client: Any, **spec: Any) -> AsyncIterator[str]:
    """A sandbox that is ready, and is deleted afterwards."""
    handle = await client.create_sandbox(**({"image": IMAGE} | spec))
    try:
        yield handle.sandbox_id
    finally:
        # If the daemon is gone, the fixture finds the leftovers.
        with contextlib.suppress(client.errors.SandboxClientError):
            await client.delete_sandbox(handle.sandbox_id, wait=False)


def writable_mount(client: Any, directory: Path, target: str = "/shared") -> Any:
    """A writable mount of a directory."""
    return client.types.MountSpec(source=str(directory), target=target, writable=True)


def script(text: str) -> list[str]:
    """A shell script as a command."""
    return ["sh", "-c", text]


async def shell(client: Any, sandbox: str, text: str, **options: Any) -> tuple[int, bytes, bytes]:
    """Runs a script to its end: its exit code, and the content of its output files."""
    return output(await client.run(sandbox, script(text), **options))


def output(handle: Any) -> tuple[int, bytes, bytes]:
    """The exit code of an exec, and the content of its output files."""
    return handle.exit_code, Path(handle.stdout_log_path).read_bytes(), Path(handle.stderr_log_path).read_bytes()


async def until(client: Any, sandbox: str, is_last: Callable[[Any], bool], **options: Any) -> list[Any]:
    """Events up to the first one that matches, which may still have to happen."""
    received = []
    async with aclosing(client.subscribe_sandbox_events(sandbox, **options)) as events:
        async for event in events:
            received.append(event)
            if is_last(event):
                return received
    raise AssertionError(f"the stream ended after {[EventType(event.event_type).name for event in received]}")


async def history(client: Any, sandbox: str) -> list[Any]:
    """All events so far."""
    newest = (await client.get_sandbox(sandbox)).last_event_sequence
    return await until(client, sandbox, lambda event: event.sequence == newest)


def event_types(events: list[Any]) -> list[EventType]:
    """The types of events."""
    return [EventType(event.event_type) for event in events]


def is_event(*types: EventType) -> Callable[[Any], bool]:
    """Matches events of these types."""
    return lambda event: event.event_type in types
