"""Commands through the sandbox objects of the package, which chooses every byte on the wire."""

import asyncio
import os
import signal

import microsandbox
import pytest

from clients.sandbox import attach, output_until, remaining_output, run, start


#= versioning.three-kinds-change.newer-side-keeps-old
#= versioning.number-agreed-upon-once.old-host-talks-newer
#= promises.published-clients.releases-published-python-client
async def test_a_command_reports_its_exit_code_stdout_and_stderr(agentd, tmp_path):
    sandbox = await attach(agentd)
    assert await run(sandbox, tmp_path, "printf out; printf err >&2; exit 7") == (7, b"out", b"err")


async def test_one_connection_serves_many_commands(agentd, tmp_path):
    sandbox = await attach(agentd)
    for number in range(20):
        assert await run(sandbox, tmp_path, f"echo {number}; exit {number}") == (number, f"{number}\n".encode(), b"")


async def test_input_is_streamed_and_ended(agentd, tmp_path):
    sandbox = await attach(agentd)
    handle = await start(sandbox, tmp_path, "cat; exit 6", stdin=microsandbox.Stdin.pipe())
    stdin = handle.take_stdin()
    await stdin.write(b"to and ")
    await stdin.write(b"fro\n")
    assert await output_until(handle, b"\n") == b"to and fro\n"
    await stdin.close()
    assert await remaining_output(handle) == (b"", 6)


async def test_input_as_bytes_arrives_complete(agentd, tmp_path):
    data = os.urandom(300_000)
    sandbox = await attach(agentd)
    assert await run(sandbox, tmp_path, "cat", stdin=microsandbox.Stdin.bytes(data)) == (0, data, b"")


async def test_a_command_has_the_requested_environment_and_directory(agentd, tmp_path):
    sandbox = await attach(agentd)
    script = 'printf "%s|%s" "$GREETING" "$(pwd -P)"'
    code, output, _ = await run(sandbox, tmp_path, script, cwd=str(tmp_path), env={"GREETING": "hello there"})
    assert (code, output) == (0, f"hello there|{os.path.realpath(tmp_path)}".encode())


async def test_three_mebibytes_of_output_arrive_complete(agentd, tmp_path):
    sandbox = await attach(agentd)
    code, output, errors = await run(sandbox, tmp_path, "head -c 3145728 /dev/zero; exit 2")
    assert (code, len(output), output.count(0), errors) == (2, 3 << 20, 3 << 20, b"")


async def test_commands_run_concurrently(agentd, tmp_path):
    sandbox = await attach(agentd)
    results = await asyncio.gather(*(run(sandbox, tmp_path, f"echo {number}; exit {number}") for number in range(12)))
    assert results == [(number, f"{number}\n".encode(), b"") for number in range(12)]


#= versioning.three-kinds-change.old-peer-ignores-field
#= versioning.three-kinds-change.adding-field-needs-bump
async def test_a_signal_kills_the_command(agentd, tmp_path):
    sandbox = await attach(agentd)
    handle = await start(sandbox, tmp_path, "echo up; exec sleep 60")
    assert await output_until(handle, b"\n") == b"up\n"
    await handle.signal(signal.SIGTERM)
    # The package does not know the signal number; the code must still show that the command did not exit.
    assert await remaining_output(handle) == (b"", -1)


async def test_a_command_may_catch_its_signal(agentd, tmp_path):
    sandbox = await attach(agentd)
    script = "trap 'echo caught; exit 9' TERM; echo up; read line"
    handle = await start(sandbox, tmp_path, script, stdin=microsandbox.Stdin.pipe())
    stdin = handle.take_stdin()
    assert await output_until(handle, b"\n") == b"up\n"
    await handle.signal(signal.SIGTERM)
    assert await remaining_output(handle) == (b"caught\n", 9)
    del stdin


#= versioning.three-kinds-change.adding-field-needs-bump
async def test_a_command_can_be_killed(agentd, tmp_path):
    sandbox = await attach(agentd)
    handle = await start(sandbox, tmp_path, "trap '' TERM INT HUP; echo up; while :; do sleep 60; done")
    assert await output_until(handle, b"\n") == b"up\n"
    await handle.kill()
    assert await remaining_output(handle) == (b"", -1)


async def test_a_command_is_killed_after_its_timeout(agentd, tmp_path):
    sandbox = await attach(agentd)
    with pytest.raises(microsandbox.ExecTimeoutError):
        await run(sandbox, tmp_path, "exec sleep 60", timeout=0.2)
    assert await run(sandbox, tmp_path, "echo on") == (0, b"on\n", b"")


async def test_a_missing_program_is_an_error(agentd):
    sandbox = await attach(agentd)
    with pytest.raises(microsandbox.MicrosandboxError, match="exec failed"):
        await sandbox.exec("/no/such/command", [])
    assert (await sandbox.exec("true", [])).exit_code == 0


async def test_a_terminal_merges_stdout_and_stderr(agentd, tmp_path):
    sandbox = await attach(agentd)
    script = "test -t 0 && test -t 1 && echo terminal; echo err >&2; stty size; exit 4"
    assert await run(sandbox, tmp_path, script, tty=True) == (4, b"terminal\r\nerr\r\n24 80\r\n", b"")


@pytest.mark.release("sandbox_resize")
async def test_a_terminal_is_resized(agentd, tmp_path):
    sandbox = await attach(agentd)
    script = "stty -echo; stty size; read go; stty size; exit 5"
    handle = await start(sandbox, tmp_path, script, tty=True, stdin=microsandbox.Stdin.pipe())
    stdin = handle.take_stdin()
    assert await output_until(handle, b"\n") == b"24 80\r\n"
    await handle.resize(33, 101)
    await stdin.write(b"\n")
    assert await remaining_output(handle) == (b"33 101\r\n", 5)


@pytest.mark.generation(lowest=6)
@pytest.mark.release("sandbox_resize")
async def test_the_sandbox_answers_ping_and_touch(agentd):
    sandbox = await attach(agentd)
    assert (await sandbox.ping()).latency_ms >= 0
    first, second = (await sandbox.touch()).activity_seq, (await sandbox.touch()).activity_seq
    assert first < second
