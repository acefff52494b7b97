"""The CLI of the package: the same protocol, with a separate process for each command."""

import asyncio
import os
import subprocess
from pathlib import Path

import microsandbox
import pytest

from clients.sandbox import register

pytestmark = pytest.mark.release("command_line")

PROGRAM = Path(microsandbox.__file__).parent / "_bundled" / "bin" / "msb"


async def msb(*arguments: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Runs the command line to its end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = await asyncio.create_subprocess_exec(PROGRAM, *arguments, **pipes)
    stdout, stderr = await program.communicate(stdin)
    return program.returncode, stdout, stderr


async def test_a_command_reports_its_exit_code_stdout_and_stderr(agentd):
    name = register(agentd)
    outcome = await msb("exec", name, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert outcome == (7, b"out\n", b"err\n")


async def test_piped_input_reaches_the_command(agentd):
    data = os.urandom(200_000)
    name = register(agentd)
    assert await msb("exec", name, "--", "cat", stdin=data) == (0, data, b"")


async def test_files_are_copied_in_both_directions(agentd, tmp_path):
    data = os.urandom(3 << 20)
    host, guest, back = tmp_path / "host", tmp_path / "guest", tmp_path / "back"
    host.write_bytes(data)
    name = register(agentd)
    assert (await msb("copy", str(host), f"{name}:{guest}"))[0] == 0
    assert guest.read_bytes() == data
    assert (await msb("copy", f"{name}:{guest}", str(back)))[0] == 0
    assert back.read_bytes() == data


@pytest.mark.generation(lowest=6)
async def test_ping_finds_the_agent(agentd):
    name = register(agentd)
    code, _, errors = await msb("ping", name)
    assert code == 0 and name.encode() in errors
