"""Tests for the 21 defects of the first implementation, none of which Carrel has.

| # | defect | test |
|---|---|---|
| 1 | a delete during a create leaves a running sandbox | `test_a_delete_during_a_create_deletes` |
| 2 | a crash during a create leaks resources | `test_daemon.py`: a create survives |
| 3 | a cancelled exec keeps running | `test_execs.py`: a cancelled exec is dead |
| 4 | several stops, several pairs of events; execs while stopping | `test_concurrent_stops_are_one_stop` |
| 5 | a crash during a stop forgets it | `test_daemon.py`: a stop survives |
| 6 | every stop takes five seconds | `test_lifecycle.py`: default timeouts of a client |
| 7 | SIGTERM waits for every stream | `test_daemon.py`: closes its streams at once |
| 8 | a resume does not restart the idle clock | `test_a_resume_restarts_the_idle_clock` |
|   | failed execs do not count as activity | `test_a_failed_exec_is_activity` |
| 9 | live events called replay; events without a state | `test_events.py`: not marked as replay; has its state |
| 10 | errors without a reason; no oldest sequence | `test_refusals.py`; `test_events.py`: the oldest one in its metadata |
| 11 | failures of a service are not reported | `test_services.py`: a service that cannot start |
| 12 | `created_at` changes with a restart | `test_daemon.py`: an exec continues |
| 13 | a restart declares running execs failed | `test_daemon.py`: an exec continues |
| 14 | logs are kept forever | `test_old_sandboxes_are_removed_with_their_logs` |
| 15 | a template names files that are never written | `test_output_is_written_where_the_operator_configured_it` |
|   | | `test_an_invalid_output_template_is_refused` |
| 16 | failed sandboxes are never cleaned up | `test_old_sandboxes_are_removed_with_their_logs` |
|   | a failure of a service is reported repeatedly | `test_services.py`: a service that cannot start |
| 17 | a refused exec uses its id | `test_a_refused_exec_does_not_use_its_id` |
| 18 | one lock for all | `test_a_slow_sandbox_blocks_no_other` |
| 19 | subscriptions poll | `test_a_waiting_subscription_costs_no_cpu` |
| 20 | a broken stream cannot be resumed | `test_a_broken_stream_can_be_resumed` |
| 21 | unknown resources are kept | `test_an_orphaned_disk_is_kept_until_the_operator_removes_it`, and `leftovers` of every daemon |
"""

import asyncio
import datetime
import json
import os
import time
from pathlib import Path

import pytest

from clients import connect
from clients.enums import EventType, ExecState, SandboxState
from clients.errors import SandboxClientError
from clients.helpers import event_types, history, is_event, new_id, new_sandbox, script, shell, until, writable_mount
from harness.pipe import Pipe

pytestmark = pytest.mark.plain

# A command that ignores signals, so that its stop takes the full grace period.
STUBBORN = "trap '' TERM INT HUP; exec 3> /shared/alive; echo up >&3; while :; do sleep 1000; done"


#= promises.control-plane.delete-during-create
@pytest.mark.parametrize("phase", ["accepted", "preparing", "ready"])
async def test_a_delete_during_a_create_deletes(start_daemon, phase):
    daemon = start_daemon()
    async with connect(daemon) as client:
        for _ in range(5):
            name = new_id()
            await client.create_sandbox(image="host", sandbox_id=name, wait=False)
            if phase != "accepted":
                await until(client, name, is_event(EventType[phase.upper()]))
            assert (await client.delete_sandbox(name)).state == SandboxState.DELETED
            received = event_types(await history(client, name))
            assert received[-2:] == [EventType.DELETE_REQUESTED, EventType.DELETED] and EventType.FAILED not in received
            assert daemon.leftovers() == []


#= promises.control-plane.stops-once
async def test_concurrent_stops_are_one_stop(client, shared):
    alive = Pipe(shared / "alive")
    async with new_sandbox(client, mounts=[writable_mount(client, shared)]) as name:
        await client.create_exec(name, script(STUBBORN))
        assert await alive.line() == "up"
        answers = await asyncio.gather(*(client.call("StopSandbox", sandbox_id=name) for _ in range(8)))
        assert all(answer.accepted for answer in answers)
        # No published state shows it, but the stop has begun: no new exec starts.
        with pytest.raises(client.errors.SandboxNotReadyError):
            await client.create_exec(name, ["true"])
        received = event_types(await until(client, name, is_event(EventType.STOPPED)))
        assert received[-3:] == [EventType.STOP_REQUESTED, EventType.EXEC_FAILED, EventType.STOPPED]
        assert (received.count(EventType.STOP_REQUESTED), received.count(EventType.STOPPED)) == (1, 1)
        await client.resume_sandbox(name)
    alive.close()


async def test_concurrent_deletes_are_one_delete(client):
    async with new_sandbox(client) as name:
        await asyncio.gather(*(client.delete_sandbox(name) for _ in range(8)))
        received = event_types(await history(client, name))
        assert (received.count(EventType.DELETE_REQUESTED), received.count(EventType.DELETED)) == (1, 1)


# Long enough for a test to use a sandbox before it is idle for so long.
IDLE = datetime.timedelta(seconds=1)


def between(first, second) -> datetime.timedelta:
    return second.occurred_at.ToDatetime() - first.occurred_at.ToDatetime()


async def test_a_resume_restarts_the_idle_clock(client):
    async with new_sandbox(client, idle_ttl=IDLE) as name:
        received = await until(client, name, is_event(EventType.STOPPED))
        await client.resume_sandbox(name)
        received += await until(client, name, is_event(EventType.STOPPED), from_sequence=received[-1].sequence)
        ready = [event for event in received if event.event_type == EventType.READY]
        requested = [event for event in received if event.event_type == EventType.STOP_REQUESTED]
        assert len(ready) == len(requested) == 2
        assert all(between(*pair) >= IDLE for pair in zip(ready, requested, strict=True))


async def test_a_failed_exec_is_activity(client):
    async with new_sandbox(client, idle_ttl=IDLE) as name:
        await client.create_exec(name, script("sleep 0.3; exit 1"))
        *_, failed, requested, _ = await until(client, name, is_event(EventType.STOPPED))
        assert event_types([failed, requested]) == [EventType.EXEC_FAILED, EventType.STOP_REQUESTED]
        assert between(failed, requested) >= IDLE


async def test_an_idle_ttl_of_zero_disables_the_idle_stop(start_daemon):
    daemon = start_daemon("[runtime]\nidle_ttl = '300ms'\n")
    async with connect(daemon) as client:
        async with new_sandbox(client, idle_ttl=datetime.timedelta(0)) as name, new_sandbox(client) as other:
            # The other one has the default of the operator, and is stopped later than this one would be.
            await until(client, other, is_event(EventType.STOPPED))
            assert (await client.get_sandbox(name)).state == SandboxState.READY


async def test_old_sandboxes_are_removed_with_their_logs(start_daemon, tmp_path):
    daemon = start_daemon("[runtime]\ncleanup_ttl = '1s'\n")
    async with connect(daemon, stream_timeout_seconds=30) as client:
        stopped, failed = new_id(), new_id()
        await client.create_sandbox(image="host", sandbox_id=stopped)
        handle = await client.run(stopped, ["echo", "out"])
        assert Path(handle.stdout_log_path).read_bytes() == b"out\n"
        await client.stop_sandbox(stopped)
        with pytest.raises(SandboxClientError):
            await client.create_sandbox(image=str(tmp_path / "missing"), sandbox_id=failed)

        async def all_events(name):
            # The stream continues after the sandbox is deleted, and ends when it is purged from the store.
            return [event async for event in client.subscribe_sandbox_events(name)]

        for received in await asyncio.gather(all_events(stopped), all_events(failed)):
            assert event_types(received)[-2:] == [EventType.DELETE_REQUESTED, EventType.DELETED]
            assert [event.sandbox_phase.reason for event in received[-2:]] == ["cleanup_ttl", "cleanup_ttl"]
        for name in (stopped, failed):
            with pytest.raises(client.errors.SandboxNotFoundError):
                await client.get_sandbox(name)
            with pytest.raises(client.errors.SandboxConflictError):
                await client.create_sandbox(image="host", sandbox_id=name)
        with pytest.raises(client.errors.ExecNotFoundError):
            await client.get_exec(handle.exec_id)
        assert not Path(handle.stdout_log_path).exists()
        assert not Path(handle.stdout_log_path).parent.exists()


async def test_output_is_written_where_the_operator_configured_it(start_daemon, tmp_path):
    template = "of/{sandbox_id}/{exec_id}"
    daemon = start_daemon(f"[artifacts]\nexec_output_root = '{tmp_path}/logs'\nexec_output_template = '{template}'\n")
    async with connect(daemon) as client, new_sandbox(client) as name:
        handle = await client.run(name, script("echo out; echo err >&2"))
        assert Path(handle.stdout_log_path).parent == tmp_path / "logs" / "of" / name
        assert Path(handle.stdout_log_path).read_bytes() == b"out\n"
        assert Path(handle.stderr_log_path).read_bytes() == b"err\n"


def test_an_invalid_output_template_is_refused(start_daemon):
    daemon = start_daemon()
    config = daemon.base / "other.toml"
    for template in ("{exec_id}", "../{sandbox_id}/{exec_id}", "{exec_id}/{sandbox_id}"):
        config.write_text(f"[artifacts]\nexec_output_template = '{template}'\n")
        refused = daemon.run("serve", "--check", "--config", str(config))
        assert refused.returncode == 2 and template in refused.stderr, refused


async def test_a_refused_exec_does_not_use_its_id(client, sandbox):
    exec_id = new_id("exec")
    with pytest.raises(SandboxClientError):
        await client.create_exec(sandbox, [], exec_id=exec_id)
    with pytest.raises(client.errors.SandboxNotFoundError):
        await client.create_exec("nobody", ["true"], exec_id=exec_id)
    assert (await client.run(sandbox, ["true"], exec_id=exec_id)).state == ExecState.FINISHED


#= control.accepted-completed.slow-operations-return-after
#= control.accepted-completed.accepted-command-said-complete
async def test_a_slow_sandbox_blocks_no_other(client, shared):
    alive = Pipe(shared / "alive")
    async with new_sandbox(client, mounts=[writable_mount(client, shared)]) as slow, new_sandbox(client) as other:
        await client.create_exec(slow, script(STUBBORN))
        assert await alive.line() == "up"
        await client.stop_sandbox(slow, wait=False)
        for _ in range(3):
            assert (await client.run(other, ["true"])).exit_code == 0
        async with new_sandbox(client):
            pass
        await client.stop_sandbox(other)
        # The stop of the slow one is still in progress.
        assert (await client.get_sandbox(slow)).state == SandboxState.READY
        await until(client, slow, is_event(EventType.STOPPED))
    alive.close()


def context_switches(pid: int) -> int:
    """The number of context switches of all threads of a process."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        count += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return count


#= control.subscription.mechanism-wait-nothing-polls
async def test_a_waiting_subscription_costs_no_cpu(start_daemon):
    daemon = start_daemon()
    async with connect(daemon, stream_timeout_seconds=60) as client, new_sandbox(client) as name:
        newest = (await client.get_sandbox(name)).last_event_sequence
        options = {"from_sequence": newest, "include_current_snapshot": True}
        streams = [client.subscribe_sandbox_events(name, **options) for _ in range(50)]
        await asyncio.gather(*(anext(events) for events in streams))
        await client.ping()

        def wake_ups() -> int:
            # A daemon that polls as often as the first implementation would wake up 10 times for each subscription.
            before = context_switches(daemon.pid)
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                os.getpid()
            return context_switches(daemon.pid) - before

        # Work after the last answer may fall into the first measurement.
        assert 0 in [wake_ups() for _ in range(5)]
        await client.create_exec(name, ["true"])
        delivered = await asyncio.gather(*(anext(events) for events in streams))
        assert {event.sequence for event in delivered} == {newest + 1}
        await asyncio.gather(*(events.aclose() for events in streams))


#= control.subscription.stream-broke-taken-last
async def test_a_broken_stream_can_be_resumed(start_daemon):
    daemon = start_daemon()
    received = []
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host")).sandbox_id
    for number in range(4):
        async with connect(daemon) as client:
            await client.call("CreateExec", sandbox_id=name, command=["true"])
            after = received[-1].sequence if received else 0
            # The stream is cut by the client, or ends with the daemon.
            received += await until(client, name, is_event(EventType.EXEC_STARTED), from_sequence=after)
        if number % 2:
            daemon.restart()
    async with connect(daemon) as client:
        await client.delete_sandbox(name)
        received += await until(client, name, is_event(EventType.DELETED), from_sequence=received[-1].sequence)
        assert [event.sequence for event in received] == list(range(1, len(received) + 1))
        assert event_types(received) == event_types(await history(client, name))


async def test_an_orphaned_disk_is_kept_until_the_operator_removes_it(start_daemon):
    daemon = start_daemon()
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host")).sandbox_id
        await shell(client, name, "echo kept > kept")
        await client.stop_sandbox(name)
    daemon.kill()
    # A disk without a sandbox.
    disk = daemon.home / "disks" / "0123456789abcdef"
    disk.mkdir()
    (disk / "file").write_text("orphaned")
    daemon.start()
    listed = daemon.run("--json", "store", "orphans")
    assert [json.loads(line)["disk"] for line in listed.stdout.splitlines()] == [disk.name], listed.stderr
    assert (disk / "file").read_text() == "orphaned"
    assert daemon.run("store", "remove", disk.name).returncode == 0
    assert not disk.exists()
    async with connect(daemon) as client:
        await client.resume_sandbox(name)
        assert (await shell(client, name, "cat kept"))[1] == b"kept\n"
        await client.delete_sandbox(name)
        assert daemon.leftovers() == []
