"""Commands through the raw client: exit codes, output, input, signals, failures."""

import asyncio
import os
import signal

import pytest

from clients.agent import connected
from clients.execution import Execution, run

pytestmark = pytest.mark.release("agent_client")


async def test_a_command_reports_its_exit_code_stdout_and_stderr(agentd):
    async with connected(agentd) as agent:
        outcome = await run(agent, "sh", "-c", "printf out; printf err >&2; exit 7")
    assert (outcome.stdout, outcome.stderr, outcome.exited) == (b"out", b"err", {"code": 7})


#= versioning.three-kinds-change.missing-field-filled-default
async def test_a_request_needs_only_the_command(agentd):
    async with connected(agentd) as agent:
        stream = await agent.open("core.exec.request", {"cmd": "true"})
        started = await stream.expect("core.exec.started")
        assert list(started) == ["pid"] and started["pid"] > 1
        assert await stream.expect("core.exec.exited") == {"code": 0}
        assert await stream.next() is None


async def test_output_can_have_every_byte(agentd):
    every_byte = bytes(range(256))
    async with connected(agentd) as agent:
        outcome = await run(agent, "cat", stdin=every_byte)
    assert (outcome.stdout, outcome.stderr, outcome.exited) == (every_byte, b"", {"code": 0})


#= carrel.commands.separate-output-error-exit
async def test_input_ends_with_an_empty_message(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "sh", "-c", "while read -r line; do echo got $line; done; echo over")
        await execution.write(b"one\n")
        await execution.until(lambda: execution.stdout == b"got one\n")
        await execution.write(b"two\n")
        await execution.until(lambda: execution.stdout == b"got one\ngot two\n")
        await execution.end_input()
        outcome = await execution.finish()
    assert (outcome.stdout, outcome.exited) == (b"got one\ngot two\nover\n", {"code": 0})


@pytest.mark.generation(highest=9)
async def test_input_may_follow_the_request_at_once(agentd):
    # Before generation 10 the package does not wait for `started`.
    async with connected(agentd) as agent:
        stream = await agent.open("core.exec.request", {"cmd": "cat"})
        await stream.send("core.exec.stdin", {"data": b"early"})
        await stream.send("core.exec.stdin", {"data": b""})
        assert list(await stream.expect("core.exec.started")) == ["pid"]
        assert await stream.expect("core.exec.stdout") == {"data": b"early"}
        assert await stream.expect("core.exec.exited") == {"code": 0}


async def test_a_command_has_the_requested_environment_and_directory(agentd, tmp_path):
    async with connected(agentd) as agent:
        options = {"env": ["A=1", "B=a=b", "A=2", "without"], "cwd": str(tmp_path)}
        outcome = await run(agent, "sh", "-c", 'printf "%s|%s|%s" "$A" "$B" "$(pwd -P)"', **options)
    assert outcome.stdout == f"2|a=b|{os.path.realpath(tmp_path)}".encode()


async def test_a_resource_limit_applies_to_the_command(agentd):
    async with connected(agentd) as agent:
        limits = [{"resource": "nofile", "soft": 33, "hard": 44}]
        outcome = await run(agent, "sh", "-c", "ulimit -Sn; ulimit -Hn", rlimits=limits)
    assert outcome.stdout == b"33\n44\n"


#= versioning.three-kinds-change.adding-field-needs-bump
#= carrel.commands.signal-process-group-number
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1], ids=lambda number: number.name)
async def test_a_signal_kills_the_command_and_is_reported_in_its_exit(agentd, number):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "sleep", "60")
        await execution.signal(number)
        outcome = await execution.finish()
    # The code is that of the published agent, which drops the signal number; Carrel adds it.
    assert (outcome.stdout, outcome.stderr, outcome.exited) == (b"", b"", {"code": -1, "signal": int(number)})


#= carrel.commands.signal-process-group-number
async def test_a_signal_reaches_the_whole_process_group(agentd):
    async with connected(agentd) as agent:
        child = "trap 'echo child; exit 0' TERM; echo up; while :; do sleep 0.1; done"
        parent = "trap 'echo parent; wait; exit 3' TERM; sh -c \"$1\" & wait"
        execution = await Execution.start(agent, "sh", "-c", parent, "sh", child)
        await execution.until(lambda: execution.stdout == b"up\n")
        await execution.signal(signal.SIGTERM)
        outcome = await execution.finish()
    assert sorted(outcome.stdout.split()) == [b"child", b"parent", b"up"]
    assert outcome.exited == {"code": 3}


async def test_a_command_may_catch_its_signal(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "sh", "-c", "trap 'echo caught; exit 9' INT; echo up; read x")
        await execution.until(lambda: execution.stdout == b"up\n")
        await execution.signal(signal.SIGINT)
        outcome = await execution.finish()
    assert (outcome.stdout, outcome.exited) == (b"up\ncaught\n", {"code": 9})


async def test_a_missing_program_fails_with_its_errno(agentd):
    async with connected(agentd) as agent:
        failed = await (await Execution.start(agent, "/no/such/command")).failure()
    assert (failed["kind"], failed["errno"], failed["errno_name"]) == ("not_found", 2, "ENOENT")
    assert failed["message"]


async def test_a_file_without_execute_permission_is_refused(agentd, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    plain.chmod(0o644)
    async with connected(agentd) as agent:
        failed = await (await Execution.start(agent, str(plain))).failure()
    assert (failed["kind"], failed["errno_name"]) == ("permission_denied", "EACCES")


async def test_a_file_that_is_not_a_program_is_refused(agentd, tmp_path):
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x7fELF but not really")
    garbage.chmod(0o755)
    async with connected(agentd) as agent:
        failed = await (await Execution.start(agent, str(garbage))).failure()
    assert (failed["kind"], failed["errno_name"]) == ("not_executable", "ENOEXEC")


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "pty"])
async def test_a_missing_directory_is_refused(agentd, tty):
    async with connected(agentd) as agent:
        failed = await (await Execution.start(agent, "true", cwd="/no/such/directory", tty=tty)).failure()
    assert (failed["kind"], failed["errno_name"]) == ("bad_cwd", "ENOENT")


async def test_many_commands_run_concurrently_on_one_connection(agentd):
    async with connected(agentd) as agent:
        script = "read word; echo $1 $word; exit $1"
        running = [run(agent, "sh", "-c", script, "sh", str(number), stdin=b"hi\n") for number in range(32)]
        outcomes = await asyncio.gather(*running)
    for number, outcome in enumerate(outcomes):
        assert (outcome.stdout, outcome.exited) == (f"{number} hi\n".encode(), {"code": number})


async def test_input_after_the_command_closed_it_is_reported_and_has_no_other_effect(agentd):
    async with connected(agentd) as agent:
        script = "exec 0<&-; trap 'exit 4' USR1; echo closed; while :; do sleep 0.1; done"
        execution = await Execution.start(agent, "sh", "-c", script)
        await execution.until(lambda: execution.stdout == b"closed\n")
        await execution.write(b"this is not read")
        await execution.until(lambda: execution.input_errors)
        await execution.signal(signal.SIGUSR1)
        outcome = await execution.finish()
    assert [error["errno_name"] for error in execution.input_errors] == ["EPIPE"]
    assert outcome.exited == {"code": 4}
