"""The sandbox objects of the package, connected to an agentd or to its relay.

A release looks up a sandbox in its registry, and connects to the socket of the agent below its home. So a row in that
registry and a symlink are enough, and everything above the wire is code of the package: encoding, acknowledgements,
credit, timeouts.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import microsandbox

from .agentd import Agentd
from .program import WATCHDOG_SECONDS
from .relay import Sandbox
from .release import CLIENT

NAME = "conformance"

# The first list creates the registry, in the schema of the release.
CREATE_REGISTRY = """
import asyncio, microsandbox

async def main():
    await microsandbox.Sandbox.list()

asyncio.run(main())
"""


async def attach(agentd: Agentd | Sandbox) -> Any:
    """A connected sandbox object with this agentd as its agent."""
    register(agentd)
    return await (await microsandbox.Sandbox.get(NAME)).connect()


def register(agentd: Agentd | Sandbox) -> str:
    """Makes this agentd the agent of the registered sandbox, and returns the name of the sandbox."""
    link = runtime_directory() / "agent.sock"
    link.unlink(missing_ok=True)
    link.symlink_to(agentd.socket)
    return NAME


@functools.cache
def runtime_directory() -> Path:
    """Registers a running sandbox, once, and returns the directory of its agent socket.

    This must happen before this process lets the package open its registry: the package has its own SQLite library,
    and two of them in one process break each other's locks.
    """
    home = Path(os.environ["MSB_HOME"])
    subprocess.run([sys.executable, "-c", CREATE_REGISTRY], stderr=subprocess.DEVNULL, timeout=WATCHDOG_SECONDS)
    image = {"reference": "none"} if CLIENT.keyword_options else "none"
    config = json.dumps({"name": NAME, "image": {"Oci": image}, "cpus": 1, "memory_mib": 512})
    now = "2026-01-01 00:00:00"
    with contextlib.closing(sqlite3.connect(home / "db" / "msb.db")) as registry, registry:
        row = registry.execute(
            "INSERT INTO sandbox (name, config, status, created_at, updated_at) VALUES (?, ?, 'Running', ?, ?)",
            (NAME, config, now, now),
        )
        # The package checks that this process is alive before it reports the sandbox as running.
        registry.execute(
            "INSERT INTO run (sandbox_id, pid, status, started_at) VALUES (?, ?, 'Running', ?)",
            (row.lastrowid, os.getpid(), now),
        )
    runtime = home / "sandboxes" / NAME / "runtime"
    runtime.mkdir(parents=True)
    return runtime


def command(script: str, directory: Path, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which this release runs a shell script under options like `cwd`, `stdin` or `tty`."""
    if CLIENT.keyword_options:
        return ("sh", ["-c", script]), options
    if not options:
        return ("sh", ["-c", script]), {}
    # This release drops the arguments if there are options, so the script has to be a separate program.
    program = directory / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return (str(program), microsandbox.ExecOptions(**options)), {}


async def run(sandbox: Any, directory: Path, script: str, **options: Any) -> tuple[int, bytes, bytes]:
    """Runs a script to its end."""
    positional, named = command(script, directory, **options)
    output = await sandbox.exec(*positional, **named)
    return output.exit_code, output.stdout_bytes, output.stderr_bytes


async def start(sandbox: Any, directory: Path, script: str, **options: Any) -> Any:
    """Starts a script and returns the package's handle of it."""
    positional, named = command(script, directory, **options)
    return await sandbox.exec_stream(*positional, **named)


async def output_until(handle: Any, ending: bytes) -> bytes:
    """Reads output until it ends with these bytes."""
    output = b""
    while not output.endswith(ending):
        event = await handle.recv()
        assert event is not None and event.event_type != "exited", f"the command exited after {output!r}"
        output += event.data or b""
    return output


async def remaining_output(handle: Any) -> tuple[bytes, int]:
    """Reads the rest of the output, and the exit code."""
    output, code = b"", None
    async for event in handle:
        output += event.data or b""
        code = event.code if event.event_type == "exited" else code
    assert code is not None
    return output, code
