"""The 21 defects of the first implementation, none of which is ours.

| # | defect | held by |
|---|---|---|
| 1 | a delete during a create ends in a sandbox that runs | `test_a_delete_during_a_create_deletes` |
| 2 | a crash during a create leaks what it made | `test_daemon.py`: a create survives |
| 3 | a cancelled exec runs on | `test_execs.py`: a cancelled exec is dead |
| 4 | several stops, several pairs of events; execs while stopping | `test_stops_at_once_are_one_stop` |
| 5 | a crash during a stop forgets it | `test_daemon.py`: a stop survives |
| 6 | every stop takes five seconds | `test_life.py`: the patience of a client |
| 7 | SIGTERM waits for every stream | `test_daemon.py`: ends its streams at once |
| 8 | a resume does not restart the idle clock | `test_a_resume_restarts_the_idle_clock` |
|   | failed execs are no activity | `test_a_failed_exec_is_activity` |
| 9 | live events called replay; events without a state | `test_events.py`: no replay; how things were |
| 10 | errors without a reason; no oldest sequence | `test_refusals.py`; `test_events.py`: where the log begins |
| 11 | a service's failures are silent | `test_spec.py`: a service that does not run |
| 12 | `created_at` changes with a restart | `test_daemon.py`: an exec goes on |
| 13 | a restart declares running execs failed | `test_daemon.py`: an exec goes on |
| 14 | logs stay for ever | `test_what_is_old_goes_with_its_logs` |
| 15 | a template names files that nobody writes | `test_output_is_where_the_operator_wants_it` |
|   | | `test_a_place_that_cannot_be_written_is_refused` |
| 16 | failed sandboxes are never cleaned up | `test_what_is_old_goes_with_its_logs` |
|   | a service's failure is told again and again | `test_spec.py`: a service that does not run |
| 17 | an exec that is refused keeps its id | `test_an_exec_that_is_refused_leaves_its_id` |
| 18 | one lock for all | `test_nobody_waits_for_the_sandbox_of_another` |
| 19 | subscriptions poll | `test_who_waits_for_events_costs_nothing` |
| 20 | a broken stream cannot be taken up again | `test_a_stream_can_be_taken_up_where_it_broke` |
| 21 | what lies behind the daemon's back stays | `test_what_no_sandbox_has_is_kept_until_a_person_removes_it`, and `left` of every daemon |
"""

import asyncio
import datetime
import json
import os
import time
from pathlib import Path

import pytest

from clients import connect
from clients.boxes import box, history, is_kind, kinds, new_id, script, shell, shown, until
from clients.errors import SandboxClientError
from clients.words import Exec, Kind, State
from world.pipe import Pipe

pytestmark = pytest.mark.plain

# A command that a sandbox cannot talk into ending, so that its stop takes as long as its grace.
STUBBORN = "trap '' TERM INT HUP; exec 3> /shared/alive; echo up >&3; while :; do sleep 1000; done"


#= promises.control-plane.delete-during-create
@pytest.mark.parametrize("moment", ["accepted", "preparing", "ready"])
async def test_a_delete_during_a_create_deletes(start_daemon, moment):
    daemon = start_daemon()
    async with connect(daemon) as client:
        for _ in range(5):
            name = new_id()
            await client.create_sandbox(image="host", sandbox_id=name, wait=False)
            if moment != "accepted":
                await until(client, name, is_kind(Kind[moment.upper()]))
            assert (await client.delete_sandbox(name)).state == State.DELETED
            seen = kinds(await history(client, name))
            assert seen[-2:] == [Kind.DELETE_REQUESTED, Kind.DELETED] and Kind.FAILED not in seen
            assert daemon.left() == []


#= promises.control-plane.stops-once
async def test_stops_at_once_are_one_stop(client, shared):
    alive = Pipe(shared / "alive")
    async with box(client, mounts=[shown(client, shared)]) as name:
        await client.create_exec(name, script(STUBBORN))
        assert await alive.line() == "up"
        answers = await asyncio.gather(*(client.call("StopSandbox", sandbox_id=name) for _ in range(8)))
        assert all(answer.accepted for answer in answers)
        # No published state says so, but it is on its way: nothing new begins.
        with pytest.raises(client.errors.SandboxNotReadyError):
            await client.create_exec(name, ["true"])
        seen = kinds(await until(client, name, is_kind(Kind.STOPPED)))
        assert seen[-3:] == [Kind.STOP_REQUESTED, Kind.EXEC_FAILED, Kind.STOPPED]
        assert (seen.count(Kind.STOP_REQUESTED), seen.count(Kind.STOPPED)) == (1, 1)
        await client.resume_sandbox(name)
    alive.close()


async def test_deletes_at_once_are_one_delete(client):
    async with box(client) as name:
        await asyncio.gather(*(client.delete_sandbox(name) for _ in range(8)))
        seen = kinds(await history(client, name))
        assert (seen.count(Kind.DELETE_REQUESTED), seen.count(Kind.DELETED)) == (1, 1)


# Long enough for whoever made a sandbox to use it before it is idle for so long.
IDLE = datetime.timedelta(seconds=1)


def between(first, second) -> datetime.timedelta:
    return second.occurred_at.ToDatetime() - first.occurred_at.ToDatetime()


async def test_a_resume_restarts_the_idle_clock(client):
    async with box(client, idle_ttl=IDLE) as name:
        seen = await until(client, name, is_kind(Kind.STOPPED))
        await client.resume_sandbox(name)
        seen += await until(client, name, is_kind(Kind.STOPPED), from_sequence=seen[-1].sequence)
        ready = [event for event in seen if event.event_type == Kind.READY]
        requested = [event for event in seen if event.event_type == Kind.STOP_REQUESTED]
        assert len(ready) == len(requested) == 2
        assert all(between(*pair) >= IDLE for pair in zip(ready, requested, strict=True))


async def test_a_failed_exec_is_activity(client):
    async with box(client, idle_ttl=IDLE) as name:
        await client.create_exec(name, script("sleep 0.3; exit 1"))
        *_, failed, requested, _ = await until(client, name, is_kind(Kind.STOPPED))
        assert kinds([failed, requested]) == [Kind.EXEC_FAILED, Kind.STOP_REQUESTED]
        assert between(failed, requested) >= IDLE


async def test_a_sandbox_that_may_be_idle_for_ever_is(start_daemon):
    daemon = start_daemon("[runtime]\nidle_ttl = '300ms'\n")
    async with connect(daemon) as client:
        async with box(client, idle_ttl=datetime.timedelta(0)) as name, box(client) as other:
            # The other one says nothing, and so goes by what the operator says: later than this one would have gone.
            await until(client, other, is_kind(Kind.STOPPED))
            assert (await client.get_sandbox(name)).state == State.READY


async def test_what_is_old_goes_with_its_logs(start_daemon, tmp_path):
    daemon = start_daemon("[runtime]\ncleanup_ttl = '1s'\n")
    async with connect(daemon, stream_timeout_seconds=30) as client:
        stopped, failed = new_id(), new_id()
        await client.create_sandbox(image="host", sandbox_id=stopped)
        handle = await client.run(stopped, ["echo", "said"])
        assert Path(handle.stdout_log_path).read_bytes() == b"said\n"
        await client.stop_sandbox(stopped)
        with pytest.raises(SandboxClientError):
            await client.create_sandbox(image=str(tmp_path / "missing"), sandbox_id=failed)

        async def to_its_end(name):
            # The stream goes on after the sandbox is deleted, and ends when nothing is known of it any more.
            return [event async for event in client.subscribe_sandbox_events(name)]

        for seen in await asyncio.gather(to_its_end(stopped), to_its_end(failed)):
            assert kinds(seen)[-2:] == [Kind.DELETE_REQUESTED, Kind.DELETED]
            assert [event.sandbox_phase.reason for event in seen[-2:]] == ["cleanup_ttl", "cleanup_ttl"]
        for name in (stopped, failed):
            with pytest.raises(client.errors.SandboxNotFoundError):
                await client.get_sandbox(name)
            with pytest.raises(client.errors.SandboxConflictError):
                await client.create_sandbox(image="host", sandbox_id=name)
        with pytest.raises(client.errors.ExecNotFoundError):
            await client.get_exec(handle.exec_id)
        assert not Path(handle.stdout_log_path).exists()
        assert not Path(handle.stdout_log_path).parent.exists()


async def test_output_is_where_the_operator_wants_it(start_daemon, tmp_path):
    template = "of/{sandbox_id}/{exec_id}"
    daemon = start_daemon(f"[artifacts]\nexec_output_root = '{tmp_path}/logs'\nexec_output_template = '{template}'\n")
    async with connect(daemon) as client, box(client) as name:
        handle = await client.run(name, script("echo out; echo err >&2"))
        assert Path(handle.stdout_log_path).parent == tmp_path / "logs" / "of" / name
        assert Path(handle.stdout_log_path).read_bytes() == b"out\n"
        assert Path(handle.stderr_log_path).read_bytes() == b"err\n"


def test_a_place_that_cannot_be_written_is_refused(start_daemon):
    daemon = start_daemon()
    config = daemon.base / "other.toml"
    for template in ("{exec_id}", "../{sandbox_id}/{exec_id}", "{exec_id}/{sandbox_id}"):
        config.write_text(f"[artifacts]\nexec_output_template = '{template}'\n")
        refused = daemon.run("serve", "--check", "--config", str(config))
        assert refused.returncode == 2 and template in refused.stderr, refused


async def test_an_exec_that_is_refused_leaves_its_id(client, sandbox):
    exec_id = new_id("exec")
    with pytest.raises(SandboxClientError):
        await client.create_exec(sandbox, [], exec_id=exec_id)
    with pytest.raises(client.errors.SandboxNotFoundError):
        await client.create_exec("nobody", ["true"], exec_id=exec_id)
    assert (await client.run(sandbox, ["true"], exec_id=exec_id)).state == Exec.FINISHED


#= control.accepted-completed.slow-operations-return-after
#= control.accepted-completed.accepted-command-said-complete
async def test_nobody_waits_for_the_sandbox_of_another(client, shared):
    alive = Pipe(shared / "alive")
    async with box(client, mounts=[shown(client, shared)]) as slow, box(client) as other:
        await client.create_exec(slow, script(STUBBORN))
        assert await alive.line() == "up"
        await client.stop_sandbox(slow, wait=False)
        for _ in range(3):
            assert (await client.run(other, ["true"])).exit_code == 0
        async with box(client):
            pass
        await client.stop_sandbox(other)
        # The slow one was on its way all the time.
        assert (await client.get_sandbox(slow)).state == State.READY
        await until(client, slow, is_kind(Kind.STOPPED))
    alive.close()


def switches(pid: int) -> int:
    """How often the threads of a process have been woken up."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        count += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return count


#= control.subscription.mechanism-wait-nothing-polls
async def test_who_waits_for_events_costs_nothing(start_daemon):
    daemon = start_daemon()
    async with connect(daemon, stream_timeout_seconds=60) as client, box(client) as name:
        newest = (await client.get_sandbox(name)).last_event_sequence
        options = {"from_sequence": newest, "include_current_snapshot": True}
        there = [client.subscribe_sandbox_events(name, **options) for _ in range(50)]
        await asyncio.gather(*(anext(events) for events in there))
        await client.ping()

        def woken() -> int:
            # One who polls as often as the first implementation did would be woken 10 times for each of them.
            before = switches(daemon.pid)
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                os.getpid()
            return switches(daemon.pid) - before

        # What the last answer leaves to be done may fall into the first look.
        assert 0 in [woken() for _ in range(5)]
        await client.create_exec(name, ["true"])
        heard = await asyncio.gather(*(anext(events) for events in there))
        assert {event.sequence for event in heard} == {newest + 1}
        await asyncio.gather(*(events.aclose() for events in there))


#= control.subscription.stream-broke-taken-last
async def test_a_stream_can_be_taken_up_where_it_broke(start_daemon):
    daemon = start_daemon()
    seen = []
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host")).sandbox_id
    for number in range(4):
        async with connect(daemon) as client:
            await client.call("CreateExec", sandbox_id=name, command=["true"])
            after = seen[-1].sequence if seen else 0
            # It breaks in the middle, by the client or with the daemon.
            seen += await until(client, name, is_kind(Kind.EXEC_STARTED), from_sequence=after)
        if number % 2:
            daemon.restart()
    async with connect(daemon) as client:
        await client.delete_sandbox(name)
        seen += await until(client, name, is_kind(Kind.DELETED), from_sequence=seen[-1].sequence)
        assert [event.sequence for event in seen] == list(range(1, len(seen) + 1))
        assert kinds(seen) == kinds(await history(client, name))


async def test_what_no_sandbox_has_is_kept_until_a_person_removes_it(start_daemon):
    daemon = start_daemon()
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host")).sandbox_id
        await shell(client, name, "echo kept > kept")
        await client.stop_sandbox(name)
    daemon.kill()
    # Somebody made what no sandbox has.
    disk = daemon.home / "disks" / "0123456789abcdef"
    disk.mkdir()
    (disk / "file").write_text("nobody's")
    daemon.start()
    listed = daemon.run("--json", "store", "orphans")
    assert [json.loads(line)["disk"] for line in listed.stdout.splitlines()] == [disk.name], listed.stderr
    assert (disk / "file").read_text() == "nobody's"
    assert daemon.run("store", "remove", disk.name).returncode == 0
    assert not disk.exists()
    async with connect(daemon) as client:
        await client.resume_sandbox(name)
        assert (await shell(client, name, "cat kept"))[1] == b"kept\n"
        await client.delete_sandbox(name)
        assert daemon.left() == []
