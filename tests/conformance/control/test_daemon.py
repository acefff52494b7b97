"""The daemon itself: shutdown, crashes, restarts, and accepted requests that survive them."""

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest

from clients import connect
from clients.enums import EventType, ExecState, SandboxState
from clients.errors import SandboxClientError
from clients.helpers import event_types, history, is_event, new_id, new_sandbox, script, shell, until, writable_mount
from harness import processes
from harness.pipe import Gate, Pipe
from harness.processes import WatchedProcess

pytestmark = pytest.mark.plain

# Counts as fast as it can until it is released.
COUNT = """
import os, select, sys
gate = os.open("/shared/gate", os.O_RDONLY | os.O_NONBLOCK)
lines = open("/shared/lines", "w", buffering=1)
number = 0
waiting = select.poll()
waiting.register(gate, select.POLLIN)
while not waiting.poll(1):
    number += 1
    print(number, flush=True)
    if number in (10, 100):
        print("up", file=lines)
sys.exit(41)
"""


def counted(path) -> list[int]:
    return [int(line) for line in Path(path).read_bytes().split()]


#= promises.control-plane.command-daemons-come-go
async def test_an_exec_continues_across_restarts_of_the_daemon(start_daemon, shared):
    daemon, gate, lines = start_daemon(), Gate(shared), Pipe(shared / "lines", keep_open=True)
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host", mounts=[writable_mount(client, shared)])).sandbox_id
        before = await client.get_sandbox(name)
        handle = await client.create_exec(name, ["python3", "-c", COUNT])
        assert await lines.line() == "up"
    daemon.kill()
    # It counts while no daemon runs.
    assert await lines.line() == "up"
    daemon.start()
    async with connect(daemon) as client:
        assert (await client.get_exec(handle.exec_id)).state == ExecState.RUNNING
        assert [one.exec_id for one in await client.list_active_execs()] == [handle.exec_id]
        assert daemon.stop() == 0
        daemon.start()
    async with connect(daemon) as client:
        await gate.open()
        received = await until(client, name, is_event(EventType.EXEC_FAILED))
        ended = await client.get_exec(handle.exec_id)
        assert (ended.state, ended.exit_code) == (ExecState.FAILED, 41)
        assert received[-1].exec.exit_code == 41
        numbers = counted(handle.stdout_log_path)
        assert len(numbers) > 100 and numbers == list(range(1, len(numbers) + 1))
        assert [event.sequence for event in received] == list(range(1, len(received) + 1))
        after = await client.get_sandbox(name)
        assert (after.created_at, after.state_changed_at) == (before.created_at, before.state_changed_at)
        assert (after.state, after.labels, after.image) == (before.state, before.labels, before.image)
        assert (await shell(client, name, "echo on"))[1] == b"on\n"
    lines.close()


#= promises.control-plane.command-daemons-come-go
async def test_an_exec_that_exits_without_a_daemon_keeps_its_outcome(start_daemon, shared):
    daemon, gate, alive = start_daemon(), Gate(shared), Pipe(shared / "alive")
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host", mounts=[writable_mount(client, shared)])).sandbox_id
        text = f"exec 3> /shared/alive; echo up >&3; {gate.wait}; echo last; exit 5"
        handle = await client.create_exec(name, script(text))
        assert await alive.line() == "up"
    daemon.kill()
    await gate.open()
    await alive.end()
    daemon.start()
    async with connect(daemon) as client:
        received = await until(client, name, is_event(EventType.EXEC_FAILED))
        assert (received[-1].exec.exec_id, received[-1].exec.exit_code) == (handle.exec_id, 5)
        assert Path(handle.stdout_log_path).read_bytes() == b"last\n"
    alive.close()


#= control.subscription.stream-broke-taken-last
#= promises.control-plane.daemon-asked-shut-down
async def test_a_daemon_closes_its_streams_at_once_on_sigterm(start_daemon):
    daemon = start_daemon()
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host")).sandbox_id
        newest = (await client.get_sandbox(name)).last_event_sequence
        streams = [client.subscribe_sandbox_events(name, from_sequence=newest - 1) for _ in range(10)]
        await asyncio.gather(*(anext(stream) for stream in streams))
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        os.kill(daemon.pid, signal.SIGTERM)
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, SandboxClientError), outcome
            assert (outcome.code.name, outcome.reason) == ("UNAVAILABLE", "DAEMON_STOPPING")
        # The deadlines of the streams are seconds away, and it exits before.
        assert await asyncio.to_thread(daemon.wait) == 0
        assert not daemon.socket.exists()
    daemon.start()
    async with connect(daemon) as client:
        assert (await shell(client, name, "echo on"))[1] == b"on\n"


#= promises.control-plane.accepted
@pytest.mark.parametrize("crash", ["kill", "stop"])
async def test_a_create_survives_the_daemon_that_accepted_it(start_daemon, crash):
    daemon = start_daemon()
    names = [new_id() for _ in range(4)]
    async with connect(daemon) as client:
        for name in names[:-1]:
            await client.create_sandbox(image="host", sandbox_id=name, wait=False)
        await until(client, names[0], is_event(EventType.PREPARING))
        await client.create_sandbox(image="host", sandbox_id=names[-1], wait=False)
    getattr(daemon, crash)()
    daemon.start()
    async with connect(daemon) as client:
        for name in names:
            received = await until(client, name, is_event(EventType.READY, EventType.FAILED))
            assert event_types(received) == [EventType.ACCEPTED, EventType.PREPARING, EventType.READY]
            assert (await shell(client, name, "echo on"))[1] == b"on\n"
            await client.delete_sandbox(name)
        assert daemon.leftovers() == []


#= promises.control-plane.accepted
async def test_a_stop_survives_the_daemon_that_accepted_it(start_daemon, shared):
    daemon, alive = start_daemon(), Pipe(shared / "alive")
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host", mounts=[writable_mount(client, shared)])).sandbox_id
        await shell(client, name, "echo kept > kept")
        # The command ignores signals, so the stop takes the full grace period.
        await client.create_exec(
            name, script("trap '' TERM; exec 3> /shared/alive; echo up >&3; while :; do sleep 1000; done")
        )
        assert await alive.line() == "up"
        await client.stop_sandbox(name, wait=False)
    daemon.restart()
    async with connect(daemon) as client:
        received = await until(client, name, is_event(EventType.STOPPED))
        assert event_types(received)[-3:] == [EventType.STOP_REQUESTED, EventType.EXEC_FAILED, EventType.STOPPED]
        assert await alive.end() == b""
        await client.resume_sandbox(name)
        assert (await shell(client, name, "cat kept"))[1] == b"kept\n"
    alive.close()


#= promises.control-plane.accepted
@pytest.mark.parametrize("request_of", ["resume", "delete"])
async def test_a_request_survives_the_daemon_that_accepted_it(start_daemon, request_of):
    daemon = start_daemon()
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host")).sandbox_id
        await client.stop_sandbox(name)
        await getattr(client, f"{request_of}_sandbox")(name, wait=False)
    daemon.restart()
    async with connect(daemon) as client:
        end = {"resume": EventType.READY, "delete": EventType.DELETED}[request_of]
        before = event_types(await history(client, name)).index(EventType.STOPPED) + 1
        await until(client, name, is_event(end, EventType.FAILED), from_sequence=before)
        state = {"resume": SandboxState.READY, "delete": SandboxState.DELETED}[request_of]
        assert (await client.get_sandbox(name)).state == state


async def test_a_daemon_that_is_killed_repeatedly_loses_nothing(start_daemon):
    daemon = start_daemon()
    name, execs = new_id(), []
    async with connect(daemon) as client:
        await client.create_sandbox(image="host", sandbox_id=name)
    for number in range(4):
        async with connect(daemon) as client:
            # It is accepted; the next daemon finds out what became of it.
            exec_id = new_id("exec")
            await client.call(
                "CreateExec", sandbox_id=name, command=script(f"echo {number}; exit {number}"), exec_id=exec_id
            )
            execs.append(exec_id)
        daemon.restart()
    async with connect(daemon) as client:
        ends = {EventType.EXEC_FINISHED: 0, EventType.EXEC_FAILED: 0}
        running = set(execs)

        def is_last(event):
            if event.event_type in ends:
                running.discard(event.exec.exec_id)
            return not running

        received = await until(client, name, is_last)
        assert [event.sequence for event in received] == list(range(1, len(received) + 1))
        assert [(await client.get_exec(exec_id)).exit_code for exec_id in execs] == list(range(4))
        assert len(received) == 3 + 2 * len(execs)


async def test_a_sandbox_whose_shim_died_is_stopped_with_the_reason(start_daemon):
    daemon = start_daemon()
    async with connect(daemon) as client:
        for name, while_it_runs in ((new_id(), True), (new_id(), False)):
            await client.create_sandbox(image="host", sandbox_id=name)
            started = await client.create_exec(name, ["sleep", "1000"])
            shims = [WatchedProcess(pid) for pid in shims_of(daemon)]
            assert shims
            if not while_it_runs:
                daemon.kill()
            for shim in shims:
                os.kill(shim.pid, signal.SIGKILL)
            await asyncio.gather(*(shim.wait() for shim in shims))
            if not while_it_runs:
                daemon.start()
            async with connect(daemon) as fresh:
                received = await until(fresh, name, is_event(EventType.STOPPED))
                expected = [EventType.STOP_REQUESTED, EventType.EXEC_FAILED, EventType.STOPPED]
                assert event_types(received)[-3:] == expected
                assert received[-1].sandbox_phase.reason == "supervisor_lost"
                assert received[-1].sandbox_phase.error_code == "CONTAINER_NOT_RUNNING"
                assert (await fresh.get_exec(started.exec_id)).state == ExecState.FAILED
                await fresh.delete_sandbox(name)
                assert daemon.leftovers() == []


def shims_of(daemon) -> list[int]:
    """The shims of the sandboxes of a home."""
    sandboxes = daemon.home / "run" / "sandboxes"
    return [pid for pid in processes.using(sandboxes) if pid != daemon.pid and "shim" in processes.command(pid)]


async def test_ids_are_never_reused(start_daemon):
    daemon = start_daemon()
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host")).sandbox_id
        handle = await client.run(name, ["true"])
        await client.delete_sandbox(name)
    daemon.restart()
    async with connect(daemon) as client:
        with pytest.raises(client.errors.SandboxConflictError):
            await client.create_sandbox(image="host", sandbox_id=name)
        async with new_sandbox(client) as other:
            with pytest.raises(client.errors.SandboxConflictError):
                await client.create_exec(other, ["true"], exec_id=handle.exec_id)
        assert (await client.get_exec(handle.exec_id)).exit_code == 0
        assert event_types(await history(client, name))[-1] == EventType.DELETED


#= promises.control-plane.fit-together-store
async def test_the_store_is_consistent_while_it_is_used(start_daemon):
    daemon = start_daemon()
    async with connect(daemon) as client, new_sandbox(client) as name:
        await client.run(name, ["true"])
        checked = await asyncio.to_thread(daemon.run, "store", "check")
        assert checked.returncode == 0, checked


def test_a_home_has_one_daemon(start_daemon):
    daemon = start_daemon()
    second = daemon.run("serve")
    assert second.returncode == 1
    assert str(daemon.pid) in second.stderr and "hint:" in second.stderr
    assert daemon.socket.is_socket()


def test_only_the_owner_can_access_the_socket_and_the_home(start_daemon):
    daemon = start_daemon()
    assert f"unix:{daemon.socket}" in daemon.ready["grpc"]
    assert daemon.ready["key"] is None
    for path in (daemon.socket.parent, daemon.home):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert daemon.socket.stat().st_mode & 0o077 == 0


async def test_limits_of_the_operator_are_enforced(start_daemon):
    daemon = start_daemon("[limits]\nsandboxes = 2\nmemory = '512m'\nsandbox_memory = '128m'\n")
    async with connect(daemon) as client:
        async with new_sandbox(client) as name, new_sandbox(client):
            with pytest.raises(SandboxClientError) as refused:
                await client.create_sandbox(image="host")
            assert (refused.value.code.name, refused.value.reason) == ("RESOURCE_EXHAUSTED", "LIMIT_REACHED")
            assert refused.value.metadata["limit"] == "sandboxes"
            # A stopped sandbox does not count.
            await client.stop_sandbox(name)
            async with new_sandbox(client) as third:
                with pytest.raises(SandboxClientError) as refused:
                    await client.resume_sandbox(name)
                assert refused.value.reason == "LIMIT_REACHED"
                assert (await client.get_sandbox(name)).state == SandboxState.STOPPED
                await client.delete_sandbox(third)
            await client.resume_sandbox(name)
            await client.delete_sandbox(name)
            with pytest.raises(SandboxClientError) as refused:
                await client.create_sandbox(image="host", memory_limit="1g")
            assert refused.value.metadata["limit"] == "memory"
