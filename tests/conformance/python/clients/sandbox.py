"""The package's own sandbox objects, pointed at an agentd or at the relay before it.

A release that asks its registry for a sandbox finds the agent's socket below its home and talks to whoever listens
there. So a row in that registry and a link are all it takes, and everything above the wire is the package's own code:
its encoding, its acknowledgements, its credit, its patience.
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

# The first question makes the registry, in the form that the release wants.
QUESTION = """
import asyncio, microsandbox

async def ask():
    await microsandbox.Sandbox.list()

asyncio.run(ask())
"""


async def attach(agentd: Agentd | Sandbox) -> Any:
    """A connected sandbox object whose agent is this agentd."""
    enter(agentd)
    return await (await microsandbox.Sandbox.get(NAME)).connect()


def enter(agentd: Agentd | Sandbox) -> str:
    """Makes this agentd the agent of the one registered sandbox, and returns its name."""
    link = registered() / "agent.sock"
    link.unlink(missing_ok=True)
    link.symlink_to(agentd.socket)
    return NAME


@functools.cache
def registered() -> Path:
    """Registers a running sandbox, once, and returns the directory in which its agent is looked for.

    It must happen before this process lets the package open its registry: the package brings a database library of its
    own, and two of them in one process break each other's locks.
    """
    home = Path(os.environ["MSB_HOME"])
    subprocess.run([sys.executable, "-c", QUESTION], stderr=subprocess.DEVNULL, timeout=WATCHDOG_SECONDS)
    image = {"reference": "none"} if CLIENT.keyword_options else "none"
    config = json.dumps({"name": NAME, "image": {"Oci": image}, "cpus": 1, "memory_mib": 512})
    now = "2026-01-01 00:00:00"
    with contextlib.closing(sqlite3.connect(home / "db" / "msb.db")) as registry, registry:
        row = registry.execute(
            "INSERT INTO sandbox (name, config, status, created_at, updated_at) VALUES (?, ?, 'Running', ?, ?)",
            (NAME, config, now, now),
        )
        # The package looks whether this process lives before it calls the sandbox running.
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
    # This release drops the arguments when there are options, so the script has to be a program of its own.
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
    """Takes output until it ends so."""
    output = b""
    while not output.endswith(ending):
        event = await handle.recv()
        assert event is not None and event.event_type != "exited", f"it ended after {output!r}"
        output += event.data or b""
    return output


async def rest(handle: Any) -> tuple[bytes, int]:
    """Takes what is left of the output, and the exit code."""
    output, code = b"", None
    async for event in handle:
        output += event.data or b""
        code = event.code if event.event_type == "exited" else code
    assert code is not None
    return output, code
