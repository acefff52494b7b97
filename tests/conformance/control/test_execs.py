"""Commands: their output files, exit codes and environment."""

import asyncio
from pathlib import Path

import pytest

from clients import connect
from clients.enums import EventType, ExecState
from clients.helpers import history, is_event, new_id, new_sandbox, output, script, shell, until, writable_mount
from harness.pipe import Gate, Pipe


async def test_output_files_have_every_byte(client, sandbox):
    handle = await client.run(sandbox, script("printf out; printf err >&2"))
    assert output(handle) == (0, b"out", b"err")
    assert handle.state == ExecState.FINISHED
    # All byte values, and more of them than any pipe holds.
    write = "import sys; [sys.stdout.buffer.write(bytes(range(256)) * 64) for _ in range(256)]"
    code, out, err = output(await client.run(sandbox, ["python3", "-c", write]))
    assert (code, err, len(out)) == (0, b"", 64 * 256 * 256)
    assert out == bytes(range(256)) * 64 * 256


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param(["sh", "-c", "printf out; printf err >&2; exit 7"], 7, id="exit"),
        pytest.param(["sh", "-c", "printf out; printf err >&2; kill -KILL $$"], 137, id="killed"),
        pytest.param(["sh", "-c", "printf out; printf err >&2; kill -TERM $$"], 143, id="terminated"),
    ],
)
#= control.events.details-exec
async def test_a_failed_command_has_its_exit_code(client, sandbox, command, code):
    handle = await client.run(sandbox, command)
    assert output(handle) == (code, b"out", b"err")
    assert handle.state == ExecState.FAILED and handle.error
    last = (await history(client, sandbox))[-1]
    assert (last.event_type, last.exec.exec_state) == (EventType.EXEC_FAILED, ExecState.FAILED)
    assert last.exec.exit_code == code
    assert (last.exec.exec_id, last.exec.error_code) == (handle.exec_id, "EXEC_RUN_FAILED")


@pytest.mark.parametrize(
    ("program", "code"), [("no-such-program", 127), ("/no/such/program", 127), ("/etc/passwd", 126)]
)
async def test_a_program_that_cannot_be_executed_has_the_exit_code_of_a_shell(client, sandbox, program, code):
    handle = await client.run(sandbox, [program, "argument"])
    assert (handle.state, handle.exit_code) == (ExecState.FAILED, code)
    assert handle.error
    assert Path(handle.stdout_log_path).read_bytes() == b""


async def test_a_command_runs_as_the_documented_user_in_the_workspace(client, sandbox):
    code, out, _ = await shell(
        client, sandbox, 'id -un; echo "$HOME"; pwd; stat -c %U . "$HOME"; touch file "$HOME/file"'
    )
    assert (code, out.decode().split()) == (0, ["agbox", "/home/agbox", "/workspace", "agbox", "agbox"])


async def test_the_environment_of_an_exec_overrides_that_of_its_sandbox(client):
    async with new_sandbox(client, envs={"KEPT": "sandbox", "REPLACED": "sandbox"}) as name:
        given = {"REPLACED": "exec", "ADDED": "a b\nc=d"}
        _, out, _ = await shell(client, name, 'printf "%s|%s|%s" "$KEPT" "$REPLACED" "$ADDED"', env_overrides=given)
        assert out == b"sandbox|exec|a b\nc=d"
        handle = await client.run(name, ["pwd"], cwd="/tmp", env_overrides=given)
        assert output(handle) == (0, b"/tmp\n", b"")
        assert (handle.cwd, dict(handle.env_overrides), list(handle.command)) == ("/tmp", given, ["pwd"])
        # The next exec does not have it.
        assert (await shell(client, name, 'printf "%s" "$ADDED"'))[1] == b""


async def test_a_missing_directory_fails_only_the_exec(client, sandbox):
    handle = await client.run(sandbox, ["true"], cwd="/no/such/directory")
    assert handle.state == ExecState.FAILED and handle.exit_code != 0
    assert (await client.run(sandbox, ["true"])).state == ExecState.FINISHED


async def test_active_execs_are_listed_in_the_order_of_their_ids(client, shared):
    async with new_sandbox(client, mounts=(writable_mount(client, shared),)) as one, new_sandbox(client) as other:
        gates = {new_id("exec"): Gate(shared, f"gate-{number}") for number in range(3)}
        for name in sorted(gates, reverse=True):
            await client.create_exec(one, script(gates[name].wait), exec_id=name)
        elsewhere = await client.create_exec(other, ["sleep", "1000"])

        async def listed(**options):
            return [handle.exec_id for handle in await client.list_active_execs(**options)]

        assert await listed(sandbox_id=one) == sorted(gates)
        assert {handle.state for handle in await client.list_active_execs(sandbox_id=one)} == {ExecState.RUNNING}
        everything = await listed()
        assert everything == sorted(everything) and {*gates, elsewhere.exec_id} <= {*everything}
        assert await listed(sandbox_id="nobody") == []

        first, *others = sorted(gates)
        since = (await client.get_sandbox(one)).last_event_sequence
        await gates[first].open()
        ended = (await until(client, one, is_event(EventType.EXEC_FINISHED), from_sequence=since))[-1]
        assert ended.exec.exec_id == first
        assert await listed(sandbox_id=one) == others


#= promises.control-plane.cancelled-command
async def test_a_cancelled_exec_is_dead_with_all_its_processes(client, shared):
    alive = Pipe(shared / "alive")
    async with new_sandbox(client, mounts=(writable_mount(client, shared),)) as name:
        # None of the processes exits by itself, and all have the pipe open.
        text = "exec 3> /shared/alive; trap '' TERM INT HUP; (sleep 1000; sleep 1000) & sleep 1000 & echo up >&3; wait"
        handle = await client.create_exec(name, script(text))
        assert await alive.line() == "up"
        assert not alive.is_at_eof()
        cancelled = await client.cancel_exec(handle.exec_id)
        assert alive.is_at_eof(), "a process of it still runs"
        assert cancelled.state == ExecState.CANCELLED
        assert (await history(client, name))[-1].event_type == EventType.EXEC_CANCELLED
        with pytest.raises(client.errors.ExecAlreadyTerminalError):
            await client.cancel_exec(handle.exec_id)
        assert (await client.run(name, ["true"])).state == ExecState.FINISHED
    alive.close()


async def test_an_exec_that_is_cancelled_at_once_does_not_start_later(client):
    async def one(name):
        # A new sandbox receives both requests at about the same time.
        handle = await client.create_exec(name, ["sleep", "1000"])
        return (await client.cancel_exec(handle.exec_id)).state

    async def in_a_new_sandbox():
        async with new_sandbox(client) as name:
            states = [await one(name)]
            await client.stop_sandbox(name)
            await client.resume_sandbox(name)
            return [*states, await one(name)]

    states = await asyncio.gather(*(in_a_new_sandbox() for _ in range(5)))
    assert states == [[ExecState.CANCELLED] * 2] * 5


#= control.snapshot-stream.getexec-carries-sequence-valid
async def test_concurrent_execs_keep_their_own_outcomes(client, sandbox):
    async def one(number):
        handle = await client.run(sandbox, script(f"echo {number}; exit {number % 3}"))
        return handle.exit_code, Path(handle.stdout_log_path).read_bytes()

    ends = await asyncio.gather(*(one(number) for number in range(20)))
    assert ends == [(number % 3, f"{number}\n".encode()) for number in range(20)]
    # Each started once and ended once.
    events = [event for event in await history(client, sandbox) if event.event_type >= EventType.EXEC_STARTED]
    started = [event.exec.exec_id for event in events if event.event_type == EventType.EXEC_STARTED]
    ended = [event.exec.exec_id for event in events if event.event_type != EventType.EXEC_STARTED]
    assert len(started) == 20 and sorted(started) == sorted(ended)


async def test_an_exec_outlives_the_timeout_of_its_caller(client, daemon, shared):
    """A wait ends with the deadline of its stream, as in the published client; the exec continues."""
    gate, exec_id = Gate(shared), new_id("exec")
    async with new_sandbox(client, mounts=(writable_mount(client, shared),)) as name:
        async with connect(daemon, stream_timeout_seconds=0.3) as short_lived:
            with pytest.raises(client.errors.SandboxClientError):
                await short_lived.create_exec(name, script(gate.wait), exec_id=exec_id, wait=True)
        assert (await client.get_exec(exec_id)).state == ExecState.RUNNING
        await gate.open()
        await until(client, name, is_event(EventType.EXEC_FINISHED))
        assert (await client.get_exec(exec_id)).state == ExecState.FINISHED
