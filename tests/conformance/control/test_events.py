"""The ordered log of a sandbox: complete, the same for everybody, and never ahead of what can be read."""

import asyncio
from contextlib import aclosing

import pytest

from clients.boxes import box, history, is_kind, kinds, new_id, script, shown, until
from clients.words import Exec, Kind, State
from world.pipe import Gate, Pipe

# How a sandbox is from an event on; an event about an exec leaves it as it is.
BECOMES = {
    Kind.ACCEPTED: State.PENDING,
    Kind.PREPARING: State.PENDING,
    Kind.READY: State.READY,
    Kind.STOP_REQUESTED: State.READY,
    Kind.STOPPED: State.STOPPED,
    Kind.DELETE_REQUESTED: State.DELETING,
    Kind.DELETED: State.DELETED,
}


async def lived(client, name):
    """A sandbox that has been through everything."""
    await client.create_sandbox(image="host", sandbox_id=name)
    for command in (["true"], ["false"]):
        await client.run(name, command)
    await client.stop_sandbox(name)
    await client.resume_sandbox(name)
    running = await client.create_exec(name, ["sleep", "1000"])
    await client.cancel_exec(running.exec_id)
    await client.delete_sandbox(name)
    return await history(client, name)


#= control.order.sequence-daemon-gives-source
#= control.events.sandbox-state-state-event
#= control.events.envelope-id-sequence-sandbox
#= promises.control-plane.events-sandbox
async def test_the_log_has_no_hole_and_says_how_things_were(client):
    name = new_id()
    events = await lived(client, name)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.event_id for event in events] == [f"{name}-{event.sequence}" for event in events]
    assert {event.sandbox_id for event in events} == {name}
    state = None
    for event in events:
        state = BECOMES.get(event.event_type, state)
        assert event.sandbox_state == state, event
    assert all(event.replay and not event.snapshot for event in events)
    assert {*kinds(events)} >= {Kind.EXEC_STARTED, Kind.EXEC_FINISHED, Kind.EXEC_FAILED, Kind.EXEC_CANCELLED}


async def test_requests_and_their_completion_name_the_same_reason(client):
    events = {Kind(event.event_type): event for event in await lived(client, new_id())}
    for kind in (Kind.STOP_REQUESTED, Kind.STOPPED):
        assert events[kind].sandbox_phase.reason == "stop_requested"
    for kind in (Kind.DELETE_REQUESTED, Kind.DELETED):
        assert events[kind].sandbox_phase.reason == "delete_requested"
    assert events[Kind.PREPARING].sandbox_phase.phase == "materialize"


#= control.subscription.separate-callers-separate-subscriptions
async def test_a_subscription_begins_after_its_sequence(client, sandbox):
    events = await history(client, sandbox)
    newest = events[-1].sequence
    for after in range(newest):
        seen = await until(client, sandbox, lambda event: event.sequence == newest, from_sequence=after)
        assert [event.sequence for event in seen] == list(range(after + 1, newest + 1))


async def test_what_happens_later_is_no_replay(client, sandbox):
    newest = (await client.get_sandbox(sandbox)).last_event_sequence
    seen = []
    async with aclosing(client.subscribe_sandbox_events(sandbox)) as events:
        async for event in events:
            seen.append(event)
            if event.sequence == newest:
                # All that was there has come, so the subscription is there.
                await client.create_exec(sandbox, ["true"])
            if event.event_type == Kind.EXEC_FINISHED:
                break
    assert [(event.sequence, event.replay) for event in seen] == [
        (number, number <= newest) for number in range(1, newest + 3)
    ]


#= control.subscription.separate-callers-separate-subscriptions
async def test_two_subscribers_see_the_same(client):
    name = new_id()
    await client.create_sandbox(image="host", sandbox_id=name, wait=False)

    async def follow():
        seen = await until(client, name, is_kind(Kind.DELETED))
        return [(event.sequence, event.event_type, event.sandbox_state, event.occurred_at) for event in seen]

    async def live():
        await until(client, name, is_kind(Kind.READY))
        await asyncio.gather(*(client.run(name, ["true"]) for _ in range(5)))
        await client.delete_sandbox(name)

    first, second, third, _ = await asyncio.gather(follow(), follow(), follow(), live())
    assert first == second == third
    assert [sequence for sequence, *_ in first] == list(range(1, len(first) + 1))


#= control.accepted-completed.authoritative-state-through-getsandbox
#= control.snapshot-stream.snapshot-carries-sequence-stream
#= promises.control-plane.read-after-event
async def test_a_client_reads_what_an_event_announced(client):
    """Clients read once for each event and do not poll: an event before its state would leave them waiting."""
    name = new_id()
    await client.create_sandbox(image="host", sandbox_id=name, wait=False)

    async def live():
        await until(client, name, is_kind(Kind.READY))
        await client.run(name, ["true"])
        await client.stop_sandbox(name)
        await client.delete_sandbox(name)

    async def read():
        async with aclosing(client.subscribe_sandbox_events(name)) as events:
            async for event in events:
                handle = await client.get_sandbox(name)
                assert handle.last_event_sequence >= event.sequence
                if handle.last_event_sequence == event.sequence:
                    assert handle.state == event.sandbox_state
                if event.event_type == Kind.EXEC_FINISHED:
                    current = await client.get_exec(event.exec.exec_id)
                    assert (current.state, current.exit_code) == (Exec.FINISHED, 0)
                    assert current.last_event_sequence >= event.sequence
                if event.event_type == Kind.DELETED:
                    return

    await asyncio.gather(live(), read())


async def test_an_exec_that_runs_when_its_sandbox_goes_ends_before_it(client, shared):
    async with box(client, mounts=(shown(client, shared),)) as name:
        for ends, end in ((client.stop_sandbox, Kind.STOPPED), (client.delete_sandbox, Kind.DELETED)):
            since = (await client.get_sandbox(name)).last_event_sequence
            alive = Pipe(shared / end.name)
            started = await client.create_exec(name, script(f"exec 3> /shared/{end.name}; echo up >&3; sleep 1000"))
            assert await alive.line() == "up"
            await ends(name)
            events = await until(client, name, is_kind(end), from_sequence=since)
            assert [kind.name for kind in kinds(events)][-2:] == ["EXEC_FAILED", end.name], kinds(events)
            handle = await client.get_exec(started.exec_id)
            # It was asked to end, and then killed if need be.
            assert handle.state == Exec.FAILED and handle.exit_code in (143, 137)
            assert await alive.end() == b""
            alive.close()
            if end is Kind.STOPPED:
                await client.resume_sandbox(name)


#= control.snapshot-stream.subscribe-snapshot-step
async def test_a_snapshot_tells_first_how_things_are(client, shared):
    gate = Gate(shared)
    async with box(client, mounts=(shown(client, shared),)) as name:
        ids = sorted(new_id("exec") for _ in range(2))
        for exec_id in ids:
            await client.create_exec(name, script(gate.wait), exec_id=exec_id)
        newest = (await history(client, name))[-1]
        options = {"include_current_snapshot": True, "from_sequence": newest.sequence - 1}
        seen = await until(client, name, lambda event: not event.snapshot, **options)
        told, *running, replayed = seen
        assert (told.event_id, told.sequence, told.replay) == (newest.event_id, newest.sequence, True)
        assert [event.event_id for event in running] == [f"{name}-snapshot-{exec_id}" for exec_id in ids]
        for event in running:
            assert (event.sequence, event.event_type) == (newest.sequence, Kind.EXEC_STARTED)
            assert (event.sandbox_state, event.exec.exec_state) == (State.READY, Exec.RUNNING)
        # What was asked for follows regardless.
        assert (replayed.event_id, replayed.snapshot) == (newest.event_id, False)
        await asyncio.gather(*(client.cancel_exec(exec_id) for exec_id in ids))


#= control.subscription.anchor-typed-error
async def test_a_sequence_that_is_still_to_come_is_refused(client, sandbox):
    newest = (await client.get_sandbox(sandbox)).last_event_sequence
    with pytest.raises(client.errors.SandboxSequenceExpiredError) as refused:
        await until(client, sandbox, lambda _: True, from_sequence=newest + 1)
    assert (refused.value.sandbox_id, refused.value.from_sequence) == (sandbox, newest + 1)


@pytest.mark.plain
async def test_such_a_refusal_says_where_the_log_begins(client, sandbox):
    with pytest.raises(client.errors.SandboxSequenceExpiredError) as refused:
        await until(client, sandbox, lambda _: True, from_sequence=2**64 - 1)
    expected = {"sandbox_id": sandbox, "from_sequence": str(2**64 - 1), "oldest_sequence": "1"}
    assert (refused.value.code.name, refused.value.metadata) == ("OUT_OF_RANGE", expected)


#= control.events.envelope-id-sequence-sandbox
@pytest.mark.plain
async def test_every_event_has_its_time_and_times_do_not_go_back(client):
    events = await lived(client, new_id())
    assert all(event.HasField("occurred_at") for event in events)
    lifecycle = [event.occurred_at.ToNanoseconds() for event in events if event.event_type < Kind.EXEC_STARTED]
    assert lifecycle == sorted(lifecycle)


#= control.snapshot-stream.snapshot-carries-sequence-stream
@pytest.mark.plain
async def test_a_hundred_subscribers_all_hear_of_it(client, sandbox):
    newest = (await client.get_sandbox(sandbox)).last_event_sequence
    options = {"from_sequence": newest, "include_current_snapshot": True}
    there = [client.subscribe_sandbox_events(sandbox, **options) for _ in range(100)]
    # Its snapshot says that a subscription is there.
    snapshots = await asyncio.gather(*(anext(events) for events in there))
    assert all(event.snapshot for event in snapshots)
    await client.create_exec(sandbox, ["true"])
    for number, kind in enumerate((Kind.EXEC_STARTED, Kind.EXEC_FINISHED), newest + 1):
        heard = await asyncio.gather(*(anext(events) for events in there))
        assert {(event.sequence, event.event_type, event.replay) for event in heard} == {(number, kind, False)}
    await asyncio.gather(*(events.aclose() for events in there))
