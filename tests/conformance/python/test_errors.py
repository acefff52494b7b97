"""What is wrong is answered, and harms nothing else."""

import asyncio

import microsandbox
import pytest

from clients.agent import connected
from clients.execution import Execution, run
from clients.messages import SESSION_START, TERMINAL, decode

pytestmark = pytest.mark.release("agent_client")

answered = pytest.mark.generation(lowest=5)


def error(kind, offending_type=None):
    """An error of this kind, whatever its words."""

    class Matches:
        def __eq__(self, message):
            payload = message.payload
            return (
                (message.type, message.flags) == ("core.error", TERMINAL)
                and payload["kind"] == kind
                and bool(payload["message"])
                and (offending_type is None or payload.get("offending_type") == offending_type)
            )

        def __repr__(self):
            return f"core.error {kind} {offending_type or ''}"

    return Matches()


@answered
async def test_an_unknown_type_is_answered_by_name(agentd):
    async with connected(agentd) as agent:
        answer = await agent.ask("future.invention", {"anything": [1, 2, 3]})
        assert answer == error("unsupported_message_type", "future.invention")
        await agent.answers()


#= versioning.implementation-details.guest-gates-peer-generation
@pytest.mark.generation(highest=4)
async def test_an_unknown_type_is_passed_over_in_silence_before_errors_existed(agentd):
    async with connected(agentd) as agent:
        stream = await agent.open("future.invention")
        waiting = asyncio.create_task(stream.next())
        for _ in range(3):
            await agent.answers()
        assert not waiting.done()


@answered
async def test_a_message_that_only_the_agent_may_send_is_refused(agentd):
    async with connected(agentd) as agent:
        answer = await agent.ask("core.exec.started", {"pid": 1})
        assert answer.type == "core.error"
        await agent.answers()


@answered
@pytest.mark.parametrize(
    "body",
    [b"\xff\x00 no CBOR at all", b"", b"\xa0", b"\x83\x01\x02\x03", b"\xa3avcnowatapa"],
    ids=["noise", "nothing", "empty-map", "array", "cut-off"],
)
async def test_a_body_that_is_no_message_is_answered(agentd, body):
    async with connected(agentd) as agent:
        await agent.answers()
        assert decode(await agent.ask_bytes(body, 0)) == error("malformed_message")
        await agent.answers()


@answered
async def test_a_client_whose_first_body_is_no_message_is_answered(agentd):
    # Nothing has told yet which generation the client is of; it has read which one the agent is of.
    async with connected(agentd) as agent:
        assert decode(await agent.ask_bytes(b"\xff\x00 no CBOR at all", 0)) == error("malformed_message")
        await agent.answers()


#= client.constants-functions.flagsessionstart-0x02-opening-frame
@answered
async def test_flags_that_are_not_the_types_own_are_refused(agentd):
    async with connected(agentd) as agent:
        assert await agent.ask("core.exec.request", {"cmd": "true"}, flags=0) == error("invalid_flags")
        assert await agent.ask("core.exec.request", {"cmd": "true"}, flags=TERMINAL) == error("invalid_flags")
        await agent.answers()


@answered
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("core.exec.request", {"args": ["no", "command"]}),
        ("core.exec.request", {"cmd": 7}),
        ("core.exec.request", [1, 2]),
        ("core.fs.request", {"op": {"Levitate": {"path": "/"}}}),
        ("core.fs.request", {"op": {"Stat": {"follow_symlink": True}}}),
        ("core.tcp.connect", {"host": "127.0.0.1"}),
        ("core.tcp.connect", {"host": "127.0.0.1", "port": 65536}),
    ],
)
async def test_a_payload_that_does_not_fit_its_type_is_refused(agentd, kind, payload):
    async with connected(agentd) as agent:
        assert await agent.ask(kind, payload) == error("invalid_payload")
        await agent.answers()


@answered
async def test_an_id_that_is_in_use_cannot_be_used_again(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "sh", "-c", "exec sleep 60")
        watched = agentd.watch(execution.pid)
        await execution.stream.send("core.exec.request", {"cmd": "true"}, SESSION_START)
        kind, payload = await execution.until_ended()
        assert (kind, payload["kind"]) == ("core.error", "invalid_session")
        await agent.answers()
    await watched.ended()


#= carrel.agent-itself.id-outside-range-broken
async def test_an_id_outside_the_range_costs_only_the_client_that_used_it(agentd):
    async with connected(agentd) as stranger, connected(agentd) as bystander:
        lost = await Execution.start(stranger, "sleep", "60")
        kept = await Execution.start(bystander, "cat")
        watched = agentd.watch(lost.pid)
        body = stranger.encode("core.exec.request", {"cmd": "true"})
        await stranger.client.send(kept.stream.id + 1, SESSION_START, body)
        await watched.ended()
        with pytest.raises(microsandbox.MicrosandboxError):
            await stranger.answers()
        await kept.write(b"untouched")
        await kept.end_input()
        assert (await kept.finish()).stdout == b"untouched"


async def test_input_signals_and_sizes_for_nobody_are_ignored(agentd):
    async with connected(agentd) as agent:
        stream = await agent.open("core.exec.request", {"cmd": "true"})
        assert [message.type async for message in stream] == ["core.exec.started", "core.exec.exited"]
        await stream.send("core.exec.stdin", {"data": b"late"})
        await stream.send("core.exec.signal", {"signal": 15})
        await stream.send("core.exec.resize", {"rows": 1, "cols": 1})
        await agent.answers()


async def test_a_signal_with_no_such_number_is_ignored(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "cat")
        for number in (-1, 0, 65, 1 << 30):
            await execution.signal(number)
        await execution.write(b"alive")
        await execution.end_input()
        assert (await execution.finish()).stdout == b"alive"


#= versioning.three-kinds-change.old-peer-ignores-field
async def test_unknown_keys_are_ignored(agentd):
    async with connected(agentd) as agent:
        stream = await agent.open("core.exec.request", {"cmd": "true", "from_the_future": {"a": [None, 1.5, "x"]}})
        assert [message.type async for message in stream] == ["core.exec.started", "core.exec.exited"]


#= promises.protocol.largest-frame
async def test_the_largest_frame_is_taken(agentd):
    # Four MiB after the length: five of header, the envelope, and the data.
    async with connected(agentd) as agent:
        fixed = len(agent.encode("core.exec.request", {"cmd": "true", "padding": b"x" * 70_000})) - 70_000
        padding = b"x" * ((4 << 20) - 5 - fixed)
        assert len(agent.encode("core.exec.request", {"cmd": "true", "padding": padding})) == (4 << 20) - 5
        stream = await agent.open("core.exec.request", {"cmd": "true", "padding": padding})
        assert [message.type async for message in stream] == ["core.exec.started", "core.exec.exited"]
        assert (await run(agent, "echo", "on")).stdout == b"on\n"
