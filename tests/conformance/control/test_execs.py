"""Commands: their output in the files that the answer names, their ends as they were, their environment."""

import asyncio
from pathlib import Path

import pytest

from clients import connect
from clients.boxes import box, history, is_kind, new_id, output, script, shell, shown, until
from clients.words import Exec, Kind
from world.pipe import Gate, Pipe


async def test_output_is_in_its_files_to_the_byte(client, sandbox):
    handle = await client.run(sandbox, script("printf out; printf err >&2"))
    assert output(handle) == (0, b"out", b"err")
    assert handle.state == Exec.FINISHED
    # All bytes there are, and more of them than any pipe holds.
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
async def test_a_command_that_fails_has_failed_with_its_code(client, sandbox, command, code):
    handle = await client.run(sandbox, command)
    assert output(handle) == (code, b"out", b"err")
    assert handle.state == Exec.FAILED and handle.error
    last = (await history(client, sandbox))[-1]
    assert (last.event_type, last.exec.exec_state, last.exec.exit_code) == (Kind.EXEC_FAILED, Exec.FAILED, code)
    assert (last.exec.exec_id, last.exec.error_code) == (handle.exec_id, "EXEC_RUN_FAILED")


@pytest.mark.parametrize(
    ("program", "code"), [("no-such-program", 127), ("/no/such/program", 127), ("/etc/passwd", 126)]
)
async def test_a_program_that_cannot_be_run_fails_as_a_shell_says_it(client, sandbox, program, code):
    handle = await client.run(sandbox, [program, "argument"])
    assert (handle.state, handle.exit_code) == (Exec.FAILED, code)
    assert handle.error
    assert Path(handle.stdout_log_path).read_bytes() == b""


async def test_a_command_runs_as_the_documented_user_in_the_workspace(client, sandbox):
    code, out, _ = await shell(
        client, sandbox, 'id -un; echo "$HOME"; pwd; stat -c %U . "$HOME"; touch file "$HOME/file"'
    )
    assert (code, out.decode().split()) == (0, ["agbox", "/home/agbox", "/workspace", "agbox", "agbox"])


async def test_the_environment_is_the_sandboxes_and_over_it_the_execs(client):
    async with box(client, envs={"KEPT": "sandbox", "REPLACED": "sandbox"}) as name:
        given = {"REPLACED": "exec", "ADDED": "a b\nc=d"}
        _, out, _ = await shell(client, name, 'printf "%s|%s|%s" "$KEPT" "$REPLACED" "$ADDED"', env_overrides=given)
        assert out == b"sandbox|exec|a b\nc=d"
        handle = await client.run(name, ["pwd"], cwd="/tmp", env_overrides=given)
        assert output(handle) == (0, b"/tmp\n", b"")
        assert (handle.cwd, dict(handle.env_overrides), list(handle.command)) == ("/tmp", given, ["pwd"])
        # The next one has nothing of it.
        assert (await shell(client, name, 'printf "%s" "$ADDED"'))[1] == b""


async def test_a_directory_that_is_missing_fails_the_exec_alone(client, sandbox):
    handle = await client.run(sandbox, ["true"], cwd="/no/such/directory")
    assert handle.state == Exec.FAILED and handle.exit_code != 0
    assert (await client.run(sandbox, ["true"])).state == Exec.FINISHED


async def test_execs_that_run_are_listed_by_their_ids(client, shared):
    async with box(client, mounts=(shown(client, shared),)) as one, box(client) as other:
        gates = {new_id("exec"): Gate(shared, f"gate-{number}") for number in range(3)}
        for name in sorted(gates, reverse=True):
            await client.create_exec(one, script(gates[name].wait), exec_id=name)
        elsewhere = await client.create_exec(other, ["sleep", "1000"])

        async def listed(**options):
            return [handle.exec_id for handle in await client.list_active_execs(**options)]

        assert await listed(sandbox_id=one) == sorted(gates)
        assert {handle.state for handle in await client.list_active_execs(sandbox_id=one)} == {Exec.RUNNING}
        everything = await listed()
        assert everything == sorted(everything) and {*gates, elsewhere.exec_id} <= {*everything}
        assert await listed(sandbox_id="nobody") == []

        first, *others = sorted(gates)
        since = (await client.get_sandbox(one)).last_event_sequence
        await gates[first].open()
        ended = (await until(client, one, is_kind(Kind.EXEC_FINISHED), from_sequence=since))[-1]
        assert ended.exec.exec_id == first
        assert await listed(sandbox_id=one) == others


#= promises.control-plane.cancelled-command
async def test_a_cancelled_exec_is_dead_with_all_its_processes(client, shared):
    alive = Pipe(shared / "alive")
    async with box(client, mounts=(shown(client, shared),)) as name:
        # Nobody of them ends by itself, and all have the pipe open.
        text = "exec 3> /shared/alive; trap '' TERM INT HUP; (sleep 1000; sleep 1000) & sleep 1000 & echo up >&3; wait"
        handle = await client.create_exec(name, script(text))
        assert await alive.line() == "up"
        assert not alive.is_at_its_end()
        cancelled = await client.cancel_exec(handle.exec_id)
        assert alive.is_at_its_end(), "something of it goes on"
        assert cancelled.state == Exec.CANCELLED
        assert (await history(client, name))[-1].event_type == Kind.EXEC_CANCELLED
        with pytest.raises(client.errors.ExecAlreadyTerminalError):
            await client.cancel_exec(handle.exec_id)
        assert (await client.run(name, ["true"])).state == Exec.FINISHED
    alive.close()


async def test_an_exec_that_is_cancelled_at_once_does_not_begin_afterwards(client):
    async def one(name):
        # A sandbox that has only just begun is asked for both at about the same time.
        handle = await client.create_exec(name, ["sleep", "1000"])
        return (await client.cancel_exec(handle.exec_id)).state

    async def in_a_new_sandbox():
        async with box(client) as name:
            states = [await one(name)]
            await client.stop_sandbox(name)
            await client.resume_sandbox(name)
            return [*states, await one(name)]

    states = await asyncio.gather(*(in_a_new_sandbox() for _ in range(5)))
    assert states == [[Exec.CANCELLED] * 2] * 5


#= control.snapshot-stream.getexec-carries-sequence-valid
async def test_many_execs_at_once_all_end_as_they_did(client, sandbox):
    async def one(number):
        handle = await client.run(sandbox, script(f"echo {number}; exit {number % 3}"))
        return handle.exit_code, Path(handle.stdout_log_path).read_bytes()

    ends = await asyncio.gather(*(one(number) for number in range(20)))
    assert ends == [(number % 3, f"{number}\n".encode()) for number in range(20)]
    # Each began once and ended once.
    events = [event for event in await history(client, sandbox) if event.event_type >= Kind.EXEC_STARTED]
    begun = [event.exec.exec_id for event in events if event.event_type == Kind.EXEC_STARTED]
    over = [event.exec.exec_id for event in events if event.event_type != Kind.EXEC_STARTED]
    assert len(begun) == 20 and sorted(begun) == sorted(over)


async def test_an_exec_outlives_the_patience_of_who_waits_for_it(client, daemon, shared):
    """A wait ends with the deadline of its stream, as the published client has it; the exec goes on."""
    gate, exec_id = Gate(shared), new_id("exec")
    async with box(client, mounts=(shown(client, shared),)) as name:
        async with connect(daemon, stream_timeout_seconds=0.3) as impatient:
            with pytest.raises(client.errors.SandboxClientError):
                await impatient.create_exec(name, script(gate.wait), exec_id=exec_id, wait=True)
        assert (await client.get_exec(exec_id)).state == Exec.RUNNING
        await gate.open()
        await until(client, name, is_kind(Kind.EXEC_FINISHED))
        assert (await client.get_exec(exec_id)).state == Exec.FINISHED
