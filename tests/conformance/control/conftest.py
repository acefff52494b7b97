"""Runs the suite with one client; `CARREL_CLIENT` says which.

`sdk` is the published client, unchanged. `plain` is gRPC with stubs from the description in this repository; it waits
as the published client does, and sees what that hides. What only `plain` can see is marked so, and is not collected for
`sdk`.

Most tests share a daemon; those that end it, or need one that is set up otherwise, have their own. Nothing of any of
them may be left behind.

    python3 -m venv ENV && ENV/bin/pip install --ignore-requires-python -r requirements/sdk.txt
    CARREL_BIN=path/to/carrel CARREL_CLIENT=sdk ENV/bin/python -m pytest
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from clients import NAME, connect
from clients.boxes import box
from clients.words import State
from world.daemon import WATCHDOG_SECONDS, Daemon

MARKERS = ("plain: only the plain client can see this",)
# Whole files of such tests, which need what is not installed beside the published client.
OF_PLAIN = ("test_beside.py", "test_callers.py", "test_daemon.py", "test_defects.py", "test_refusals.py")
collect_ignore = [] if NAME == "plain" else [*OF_PLAIN]
_left_out = 0


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    global _left_out
    possible = [item for item in items if NAME == "plain" or not item.get_closest_marker("plain")]
    _left_out = len(items) - len(possible)
    items[:] = possible


def pytest_report_collectionfinish() -> str:
    return f"{NAME}: {_left_out} tests look at what this client does not show"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine under the watchdog. What belongs to its loop, a client and a sandbox, is made in it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def watched() -> None:
        async with asyncio.timeout(WATCHDOG_SECONDS), AsyncExitStack() as made:
            if "client" in arguments:
                arguments["client"] = await made.enter_async_context(connect(arguments["client"]))
            if "sandbox" in arguments:
                arguments["sandbox"] = await made.enter_async_context(box(arguments["client"]))
            await pyfuncitem.obj(**arguments)

    asyncio.run(watched())
    return True


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """The daemon that tests share."""
    yield from served(Daemon())


@pytest.fixture
def client(daemon: Daemon) -> Daemon:
    """A client of the shared daemon, once the test runs."""
    return daemon


@pytest.fixture
def sandbox(client: Daemon) -> None:
    """A sandbox of that client, once the test runs."""


@pytest.fixture
def start_daemon() -> Iterator[Callable[..., Daemon]]:
    """Starts daemons of the test's own, each with its home."""
    started: list[Iterator[Daemon]] = []

    def start(config: str = "") -> Daemon:
        started.append(served(Daemon(config)))
        return next(started[-1])

    yield start
    for daemon in started:
        next(daemon, None)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that is to be shown in a sandbox, which may write to it."""
    tmp_path.chmod(0o777)
    return tmp_path


def served(daemon: Daemon) -> Iterator[Daemon]:
    """A daemon until it is not needed any more: then everything of it can be deleted, and nothing is left."""
    try:
        yield daemon.start()
        asyncio.run(asyncio.wait_for(_delete_all(daemon), WATCHDOG_SECONDS))
        left = daemon.left()
        assert daemon.stop() == 0, daemon.logs
        assert not left and not daemon.left(), f"left behind: {left} {daemon.left()}\n{daemon.logs}"
    finally:
        print(daemon.logs)
        daemon.close()


async def _delete_all(daemon: Daemon) -> None:
    async with connect(daemon) as client:
        sandboxes: list[Any] = await client.list_sandboxes()
        await asyncio.gather(*(client.delete_sandbox(one.sandbox_id) for one in sandboxes))
        assert all(one.state == State.DELETED for one in await client.list_sandboxes(include_deleted=True))
