"""Runs the suite with one client, which `CARREL_CLIENT` names.

`sdk` is the published client, unchanged. `plain` is gRPC with stubs from the description in this repository; it waits
as the published client does, and sees what that hides. Tests that only `plain` can run are marked so, and are not
collected for `sdk`.

Most tests share a daemon; those that stop it, or need another configuration, have their own. None may leave anything
behind.

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
from clients.enums import SandboxState
from clients.helpers import new_sandbox
from harness.daemon import WATCHDOG_SECONDS, Daemon

MARKERS = ("plain: only the plain client can run this",)
# Files of such tests, which need packages that are not installed with the published client.
PLAIN_ONLY = ("test_callers.py", "test_daemon.py", "test_defects.py", "test_other_services.py", "test_refusals.py")
collect_ignore = [] if NAME == "plain" else [*PLAIN_ONLY]
_skipped = 0


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    global _skipped
    possible = [item for item in items if NAME == "plain" or not item.get_closest_marker("plain")]
    _skipped = len(items) - len(possible)
    items[:] = possible


def pytest_report_collectionfinish() -> str:
    return f"{NAME}: {_skipped} tests need another client"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine with a time limit. Its client and sandbox belong to its event loop, and are created in it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run_with_timeout() -> None:
        async with asyncio.timeout(WATCHDOG_SECONDS), AsyncExitStack() as stack:
            if "client" in arguments:
                arguments["client"] = await stack.enter_async_context(connect(arguments["client"]))
            if "sandbox" in arguments:
                arguments["sandbox"] = await stack.enter_async_context(new_sandbox(arguments["client"]))
            await pyfuncitem.obj(**arguments)

    asyncio.run(run_with_timeout())
    return True


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """The daemon that tests share."""
    yield from run_daemon(Daemon())


@pytest.fixture
def client(daemon: Daemon) -> Daemon:
    """Becomes a client of the shared daemon when the test runs."""
    return daemon


@pytest.fixture
def sandbox(client: Daemon) -> None:
    """Becomes a sandbox of that client when the test runs."""


@pytest.fixture
def start_daemon() -> Iterator[Callable[..., Daemon]]:
    """Starts daemons for one test, each with its own home."""
    started: list[Iterator[Daemon]] = []

    def start(config: str = "") -> Daemon:
        started.append(run_daemon(Daemon(config)))
        return next(started[-1])

    yield start
    for daemon in started:
        next(daemon, None)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory to be mounted in a sandbox, which may write to it."""
    tmp_path.chmod(0o777)
    return tmp_path


def run_daemon(daemon: Daemon) -> Iterator[Daemon]:
    """Runs a daemon for its tests, and then checks that everything can be deleted and nothing is left."""
    try:
        yield daemon.start()
        asyncio.run(asyncio.wait_for(_delete_all(daemon), WATCHDOG_SECONDS))
        leftovers = daemon.leftovers()
        assert daemon.stop() == 0, daemon.logs
        assert not leftovers and not daemon.leftovers(), f"left behind: {leftovers} {daemon.leftovers()}\n{daemon.logs}"
    finally:
        print(daemon.logs)
        daemon.close()


async def _delete_all(daemon: Daemon) -> None:
    async with connect(daemon) as client:
        sandboxes: list[Any] = await client.list_sandboxes()
        await asyncio.gather(*(client.delete_sandbox(one.sandbox_id) for one in sandboxes))
        assert all(one.state == SandboxState.DELETED for one in await client.list_sandboxes(include_deleted=True))
