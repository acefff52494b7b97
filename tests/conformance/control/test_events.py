"""The ordered log of a sandbox: complete, the same for all subscribers, and never ahead of the state."""

import asyncio
from contextlib import aclosing

import pytest

from clients.enums import EventType, ExecState, SandboxState
from clients.helpers import event_types, history, is_event, new_id, new_sandbox, script, until, writable_mount
from harness.pipe import Gate, Pipe

# The state of a sandbox after an event; an event of an exec does not change it.
STATE_AFTER = {
    EventType.ACCEPTED: SandboxState.PENDING,
    EventType.PREPARING: SandboxState.PENDING,
    EventType.READY: SandboxState.READY,
    EventType.STOP_REQUESTED: SandboxState.READY,
    EventType.STOPPED: SandboxState.STOPPED,
    EventType.DELETE_REQUESTED: SandboxState.DELETING,
    EventType.DELETED: SandboxState.DELETED,
}
EXEC_ENDS = (EventType.EXEC_FINISHED, EventType.EXEC_FAILED, EventType.EXEC_CANCELLED)


async def full_lifecycle(client, name):
    """The events of a sandbox after a full lifecycle."""
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
async def test_the_log_has_no_gaps_and_each_event_has_its_state(client):
    name = new_id()
    events = await full_lifecycle(client, name)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.event_id for event in events] == [f"{name}-{event.sequence}" for event in events]
    assert {event.sandbox_id for event in events} == {name}
    state = None
    for event in events:
        state = STATE_AFTER.get(event.event_type, state)
        assert event.sandbox_state == state, event
    assert all(event.replay and not event.snapshot for event in events)
    assert {*event_types(events)} >= {EventType.EXEC_STARTED, *EXEC_ENDS}


#= control.events.details-sandbox-phase
async def test_requests_and_their_completion_name_the_same_reason(client):
    events = {EventType(event.event_type): event for event in await full_lifecycle(client, new_id())}
    for kind in (EventType.STOP_REQUESTED, EventType.STOPPED):
        assert events[kind].sandbox_phase.reason == "stop_requested"
    for kind in (EventType.DELETE_REQUESTED, EventType.DELETED):
        assert events[kind].sandbox_phase.reason == "delete_requested"
    assert events[EventType.PREPARING].sandbox_phase.phase == "materialize"


#= control.subscription.public-api
#= control.subscription.separate-callers-separate-subscriptions
async def test_a_subscription_begins_after_its_sequence(client, sandbox):
    events = await history(client, sandbox)
    newest = events[-1].sequence
    for after in range(newest):
        received = await until(client, sandbox, lambda event: event.sequence == newest, from_sequence=after)
        assert [event.sequence for event in received] == list(range(after + 1, newest + 1))


async def test_later_events_are_not_marked_as_replay(client, sandbox):
    newest = (await client.get_sandbox(sandbox)).last_event_sequence
    received = []
    async with aclosing(client.subscribe_sandbox_events(sandbox)) as events:
        async for event in events:
            received.append(event)
            if event.sequence == newest:
                # All earlier events were received, so the subscription is live.
                await client.create_exec(sandbox, ["true"])
            if event.event_type == EventType.EXEC_FINISHED:
                break
    assert [(event.sequence, event.replay) for event in received] == [
        (number, number <= newest) for number in range(1, newest + 3)
    ]


#= control.subscription.separate-callers-separate-subscriptions
async def test_two_subscribers_see_the_same(client):
    name = new_id()
    await client.create_sandbox(image="host", sandbox_id=name, wait=False)

    async def follow():
        received = await until(client, name, is_event(EventType.DELETED))
        return [(event.sequence, event.event_type, event.sandbox_state, event.occurred_at) for event in received]

    async def run_lifecycle():
        await until(client, name, is_event(EventType.READY))
        await asyncio.gather(*(client.run(name, ["true"]) for _ in range(5)))
        await client.delete_sandbox(name)

    first, second, third, _ = await asyncio.gather(follow(), follow(), follow(), run_lifecycle())
    assert first == second == third
    assert [sequence for sequence, *_ in first] == list(range(1, len(first) + 1))


#= control.accepted-completed.authoritative-state-through-getsandbox
#= control.snapshot-stream.snapshot-carries-sequence-stream
#= promises.control-plane.read-after-event
async def test_a_client_reads_what_an_event_announced(client):
    """Clients read once for each event and do not poll: an event before its state would leave them waiting."""
    name = new_id()
    await client.create_sandbox(image="host", sandbox_id=name, wait=False)

    async def run_lifecycle():
        await until(client, name, is_event(EventType.READY))
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
                if event.event_type == EventType.EXEC_FINISHED:
                    current = await client.get_exec(event.exec.exec_id)
                    assert (current.state, current.exit_code) == (ExecState.FINISHED, 0)
                    assert current.last_event_sequence >= event.sequence
                if event.event_type == EventType.DELETED:
                    return

    await asyncio.gather(run_lifecycle(), read())


async def test_a_running_exec_ends_before_its_sandbox(client, shared):
    async with new_sandbox(client, mounts=(writable_mount(client, shared),)) as name:
        for method, end in ((client.stop_sandbox, EventType.STOPPED), (client.delete_sandbox, EventType.DELETED)):
            since = (await client.get_sandbox(name)).last_event_sequence
            alive = Pipe(shared / end.name)
            started = await client.create_exec(name, script(f"exec 3> /shared/{end.name}; echo up >&3; sleep 1000"))
            assert await alive.line() == "up"
            await method(name)
            events = await until(client, name, is_event(end), from_sequence=since)
            assert [kind.name for kind in event_types(events)][-2:] == ["EXEC_FAILED", end.name], event_types(events)
            handle = await client.get_exec(started.exec_id)
            # It was terminated, or killed after the grace period.
            assert handle.state == ExecState.FAILED and handle.exit_code in (143, 137)
            assert await alive.end() == b""
            alive.close()
            if end is EventType.STOPPED:
                await client.resume_sandbox(name)


#= control.snapshot-stream.subscribe-snapshot-step
async def test_a_snapshot_comes_before_the_events(client, shared):
    gate = Gate(shared)
    async with new_sandbox(client, mounts=(writable_mount(client, shared),)) as name:
        ids = sorted(new_id("exec") for _ in range(2))
        for exec_id in ids:
            await client.create_exec(name, script(gate.wait), exec_id=exec_id)
        newest = (await history(client, name))[-1]
        options = {"include_current_snapshot": True, "from_sequence": newest.sequence - 1}
        received = await until(client, name, lambda event: not event.snapshot, **options)
        snapshot, *running, replayed = received
        assert (snapshot.event_id, snapshot.sequence, snapshot.replay) == (newest.event_id, newest.sequence, True)
        assert [event.event_id for event in running] == [f"{name}-snapshot-{exec_id}" for exec_id in ids]
        for event in running:
            assert (event.sequence, event.event_type) == (newest.sequence, EventType.EXEC_STARTED)
            assert (event.sandbox_state, event.exec.exec_state) == (SandboxState.READY, ExecState.RUNNING)
        # The requested events follow.
        assert (replayed.event_id, replayed.snapshot) == (newest.event_id, False)
        await asyncio.gather(*(client.cancel_exec(exec_id) for exec_id in ids))


#= control.subscription.anchor-typed-error
async def test_a_future_sequence_is_refused(client, sandbox):
    newest = (await client.get_sandbox(sandbox)).last_event_sequence
    with pytest.raises(client.errors.SandboxSequenceExpiredError) as refused:
        await until(client, sandbox, lambda _: True, from_sequence=newest + 1)
    assert (refused.value.sandbox_id, refused.value.from_sequence) == (sandbox, newest + 1)


@pytest.mark.plain
async def test_a_refused_sequence_has_the_oldest_one_in_its_metadata(client, sandbox):
    with pytest.raises(client.errors.SandboxSequenceExpiredError) as refused:
        await until(client, sandbox, lambda _: True, from_sequence=2**64 - 1)
    expected = {"sandbox_id": sandbox, "from_sequence": str(2**64 - 1), "oldest_sequence": "1"}
    assert (refused.value.code.name, refused.value.metadata) == ("OUT_OF_RANGE", expected)


#= control.events.envelope-id-sequence-sandbox
@pytest.mark.plain
async def test_every_event_has_a_timestamp_and_timestamps_do_not_go_back(client):
    events = await full_lifecycle(client, new_id())
    assert all(event.HasField("occurred_at") for event in events)
    # The events of execs too: each step of this lifecycle starts when the one before has ended.
    times = [event.occurred_at.ToNanoseconds() for event in events]
    assert times[0] > 0
    assert times == sorted(times)
    details = dict.fromkeys(STATE_AFTER, "sandbox_phase") | dict.fromkeys((EventType.EXEC_STARTED, *EXEC_ENDS), "exec")
    details |= {EventType.ACCEPTED: None, EventType.READY: None}
    for event in events:
        assert event.WhichOneof("details") == details[event.event_type], event


#= control.snapshot-stream.snapshot-carries-sequence-stream
@pytest.mark.plain
async def test_a_hundred_subscribers_receive_every_event(client, sandbox):
    newest = (await client.get_sandbox(sandbox)).last_event_sequence
    options = {"from_sequence": newest, "include_current_snapshot": True}
    streams = [client.subscribe_sandbox_events(sandbox, **options) for _ in range(100)]
    # The snapshot shows that a subscription is live.
    snapshots = await asyncio.gather(*(anext(events) for events in streams))
    assert all(event.snapshot for event in snapshots)
    await client.create_exec(sandbox, ["true"])
    for number, kind in enumerate((EventType.EXEC_STARTED, EventType.EXEC_FINISHED), newest + 1):
        delivered = await asyncio.gather(*(anext(events) for events in streams))
        assert {(event.sequence, event.event_type, event.replay) for event in delivered} == {(number, kind, False)}
    await asyncio.gather(*(events.aclose() for events in streams))
