"""Runs the suite with the one release that is installed beside it; `CARREL_CLIENT` says which.

What a release cannot do is not collected for it, instead of skipped: a skip says that something should have run and did
not, and no run of an old release will ever have, say, bulk records. Each such limit is a field of `Release` with its
reason. Every test still runs for at least one release, and the collection says how many it left out.

The same tests run against agentd itself and against the relay of a sandbox, which only root can make. What has no
meaning there says so with a marker, and is left out in the same way.

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

# The package reads its home once, so it is set before anything imports the package. Sandboxes are made in the same one.
HOME = tempfile.mkdtemp(prefix="carrel-home-")
os.environ["MSB_HOME"] = HOME

MARKERS = (
    "generation(lowest, highest): the generation that client and agentd settle on lies between these",
    "release(field): the release can do what this field of Release says",
    "agentd_alone(reason): why this has no meaning behind a relay",
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
    """Whether the installed release can do what a test asks of it."""
    if not all(getattr(CLIENT, marker.args[0]) for marker in item.iter_markers("release")):
        return False
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    server: Server = parameters.get("agentd", CLIENT.servers[0])
    if server.relay and item.get_closest_marker("agentd_alone"):
        return False
    settled = CLIENT.negotiated(server.generation)
    return all(
        marker.kwargs.get("lowest", 1) <= settled <= marker.kwargs.get("highest", settled)
        for marker in item.iter_markers("generation")
    )


def pytest_report_collectionfinish() -> str:
    release = f"microsandbox {CLIENT.version}, generation {CLIENT.generation}"
    return f"{release}: {_left_out} tests ask for what it or its server cannot do"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine under the watchdog; no test waits in any other way."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def watched() -> None:
        async with asyncio.timeout(WATCHDOG_SECONDS):
            await pyfuncitem.obj(**arguments)

    asyncio.run(watched())
    return True


def pytest_sessionfinish(exitstatus: int) -> None:
    global _status
    _status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Leaves without the interpreter's farewell, in which a thread of the package can panic and abort."""
    shutil.rmtree(HOME, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    if _status is not None:
        os._exit(_status)


@pytest.fixture
def start_agentd() -> Iterator[Callable[[int], Agentd]]:
    """Starts an agentd of a generation; all are ended after the test."""
    started: list[Agentd] = []

    def start(generation: int) -> Agentd:
        started.append(Agentd(generation))
        return started[-1]

    yield start
    for agentd in started:
        agentd.stop()


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox, in which the directory of the test is where it is outside."""
    started = Sandbox(tmp_path)
    yield started
    started.stop()


@pytest.fixture(params=CLIENT.servers, ids=str)
def agentd(request: pytest.FixtureRequest) -> Agentd | Sandbox:
    """An agentd of each generation that the release is tried with, and one behind a relay."""
    server: Server = request.param
    if server.relay:
        return request.getfixturevalue("sandbox")
    return request.getfixturevalue("start_agentd")(server.generation)
