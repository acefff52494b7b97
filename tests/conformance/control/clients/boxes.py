"""What most tests do with a client: have a sandbox, run a command in it, read what happened to it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from .words import Kind

IMAGE = "host"


def new_id(what: str = "box") -> str:
    """An id that nobody had before."""
    return f"{what}-{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def box(client: Any, **spec: Any) -> AsyncIterator[str]:
    """A sandbox that is ready, and goes afterwards."""
    handle = await client.create_sandbox(**({"image": IMAGE} | spec))
    try:
        yield handle.sandbox_id
    finally:
        # If the daemon is gone, the end of the test finds what is left.
        with contextlib.suppress(client.errors.SandboxClientError):
            await client.delete_sandbox(handle.sandbox_id, wait=False)


def shown(client: Any, directory: Path, target: str = "/shared") -> Any:
    """A mount of a directory that can be written from inside."""
    return client.types.MountSpec(source=str(directory), target=target, writable=True)


def script(text: str) -> list[str]:
    """A command that is a script of a shell."""
    return ["sh", "-c", text]


async def shell(client: Any, sandbox: str, text: str, **options: Any) -> tuple[int, bytes, bytes]:
    """Runs a script to its end: its exit code, and what is in the files of its output."""
    return output(await client.run(sandbox, script(text), **options))


def output(handle: Any) -> tuple[int, bytes, bytes]:
    """How an exec ended, and what is in the files of its output."""
    return handle.exit_code, Path(handle.stdout_log_path).read_bytes(), Path(handle.stderr_log_path).read_bytes()


async def until(client: Any, sandbox: str, wanted: Callable[[Any], bool], **options: Any) -> list[Any]:
    """Events up to the first one that is wanted, which may still have to happen."""
    seen = []
    async with aclosing(client.subscribe_sandbox_events(sandbox, **options)) as events:
        async for event in events:
            seen.append(event)
            if wanted(event):
                return seen
    raise AssertionError(f"the stream ended after {[Kind(event.event_type).name for event in seen]}")


async def history(client: Any, sandbox: str) -> list[Any]:
    """Everything that has happened."""
    newest = (await client.get_sandbox(sandbox)).last_event_sequence
    return await until(client, sandbox, lambda event: event.sequence == newest)


def kinds(events: list[Any]) -> list[Kind]:
    """What happened, without the rest."""
    return [Kind(event.event_type) for event in events]


def is_kind(*wanted: Kind) -> Callable[[Any], bool]:
    """Whether an event is one of these."""
    return lambda event: event.event_type in wanted
