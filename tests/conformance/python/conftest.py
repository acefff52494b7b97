"""Runs the suite with the installed release, which `CARREL_CLIENT` names.

Tests of features that a release does not have are not collected, instead of skipped: a skip means that a test should
have run, and no run of an old release will ever have, say, bulk records. Each such limit is a field of `Release` with
its reason. Every test runs for at least one release, and the collection reports how many were left out.

The same tests run against agentd itself and against the relay of a sandbox, which only root can start. Tests that have
no meaning there have a marker, and are left out in the same way.

    python3 -m venv ENV && ENV/bin/pip install -r requirements/gen7.txt
    CARREL_AGENTD=path/to/carrel-agentd CARREL_BIN=path/to/carrel CARREL_CLIENT=gen7 ENV/bin/python -m pytest
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Callable, Iterator

import pytest

from clients.agentd import Agentd
from clients.program import WATCHDOG_SECONDS
from clients.relay import Sandbox
from clients.release import CLIENT, Server

# The package reads its home once, so it is set before the package is imported. Sandboxes use the same home.
HOME = tempfile.mkdtemp(prefix="carrel-home-")
os.environ["MSB_HOME"] = HOME

MARKERS = (
    "generation(lowest, highest): the agreed generation of client and agentd is between these",
    "release(field): the release has the feature of this field of Release",
    "agentd_alone(reason): this has no meaning behind a relay",
)
_left_out = 0
_status: int | None = None


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    installed = importlib.metadata.version("microsandbox")
    if installed != CLIENT.version:
        raise pytest.UsageError(f"CARREL_CLIENT={CLIENT.name} is {CLIENT.version}, and {installed} is installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    global _left_out
    possible = [item for item in items if can_run(item)]
    _left_out = len(items) - len(possible)
    items[:] = possible


def can_run(item: pytest.Item) -> bool:
    """Whether the installed release has the features that a test needs."""
    if not all(getattr(CLIENT, marker.args[0]) for marker in item.iter_markers("release")):
        return False
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    server: Server = parameters.get("agentd", CLIENT.servers[0])
    if server.relay and item.get_closest_marker("agentd_alone"):
        return False
    agreed = CLIENT.negotiated(server.generation)
    return all(
        marker.kwargs.get("lowest", 1) <= agreed <= marker.kwargs.get("highest", agreed)
        for marker in item.iter_markers("generation")
    )


def pytest_report_collectionfinish() -> str:
    release = f"microsandbox {CLIENT.version}, generation {CLIENT.generation}"
    return f"{release}: {_left_out} tests need features that it or its server does not have"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine with a time limit."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def run_with_timeout() -> None:
        async with asyncio.timeout(WATCHDOG_SECONDS):
            await pyfuncitem.obj(**arguments)

    asyncio.run(run_with_timeout())
    return True


def pytest_sessionfinish(exitstatus: int) -> None:
    global _status
    _status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Exits without the shutdown of the interpreter, during which a thread of the package can panic and abort."""
    shutil.rmtree(HOME, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    if _status is not None:
        os._exit(_status)


@pytest.fixture
def start_agentd() -> Iterator[Callable[[int], Agentd]]:
    """Starts an agentd of a generation; all are stopped after the test."""
    started: list[Agentd] = []

    def start(generation: int) -> Agentd:
        started.append(Agentd(generation))
        return started[-1]

    yield start
    for agentd in started:
        agentd.stop()


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox, in which the directory of the test has the same path as outside."""
    started = Sandbox(tmp_path)
    yield started
    started.stop()


@pytest.fixture(params=CLIENT.servers, ids=str)
def agentd(request: pytest.FixtureRequest) -> Agentd | Sandbox:
    """An agentd of each generation that the release is tested with, and one behind a relay."""
    server: Server = request.param
    if server.relay:
        return request.getfixturevalue("sandbox")
    return request.getfixturevalue("start_agentd")(server.generation)
