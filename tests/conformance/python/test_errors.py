"""Invalid messages are has_errors with an error, and affect nothing else."""

import asyncio

import microsandbox
import pytest

from clients.agent import connected
from clients.execution import Execution, run
from clients.messages import SESSION_START, TERMINAL, decode

pytestmark = pytest.mark.release("agent_client")

has_errors = pytest.mark.generation(lowest=5)


def error(kind, offending_type=None):
    """An error of this kind, with any message."""

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


@has_errors
async def test_an_unknown_type_is_answered_with_its_name(agentd):
    async with connected(agentd) as agent:
        answer = await agent.ask("future.invention", {"anything": [1, 2, 3]})
        assert answer == error("unsupported_message_type", "future.invention")
        await agent.check_alive()


#= versioning.implementation-details.guest-gates-peer-generation
@pytest.mark.generation(highest=4)
async def test_an_unknown_type_is_ignored_before_generation_5(agentd):
    async with connected(agentd) as agent:
        stream = await agent.open("future.invention")
        waiting = asyncio.create_task(stream.next())
        for _ in range(3):
            await agent.check_alive()
        assert not waiting.done()


@has_errors
async def test_a_message_that_only_the_agent_may_send_is_refused(agentd):
    async with connected(agentd) as agent:
        answer = await agent.ask("core.exec.started", {"pid": 1})
        assert answer.type == "core.error"
        await agent.check_alive()


@has_errors
@pytest.mark.parametrize(
    "body",
    [b"\xff\x00 no CBOR at all", b"", b"\xa0", b"\x83\x01\x02\x03", b"\xa3avcnowatapa"],
    ids=["noise", "nothing", "empty-map", "array", "cut-off"],
)
async def test_a_malformed_body_is_answered(agentd, body):
    async with connected(agentd) as agent:
        await agent.check_alive()
        assert decode(await agent.ask_bytes(body, 0)) == error("malformed_message")
        await agent.check_alive()


@has_errors
async def test_a_client_whose_first_body_is_malformed_is_answered(agentd):
    # The agent does not know the generation of the client yet; the client knows that of the agent.
    async with connected(agentd) as agent:
        assert decode(await agent.ask_bytes(b"\xff\x00 no CBOR at all", 0)) == error("malformed_message")
        await agent.check_alive()


#= client.constants-functions.flagsessionstart-0x02-opening-frame
@has_errors
async def test_wrong_flags_for_a_type_are_refused(agentd):
    async with connected(agentd) as agent:
        assert await agent.ask("core.exec.request", {"cmd": "true"}, flags=0) == error("invalid_flags")
        assert await agent.ask("core.exec.request", {"cmd": "true"}, flags=TERMINAL) == error("invalid_flags")
        await agent.check_alive()


@has_errors
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
async def test_an_invalid_payload_is_refused(agentd, kind, payload):
    async with connected(agentd) as agent:
        assert await agent.ask(kind, payload) == error("invalid_payload")
        await agent.check_alive()


@has_errors
async def test_an_id_in_use_cannot_be_used_again(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "sh", "-c", "exec sleep 60")
        watched = agentd.watch(execution.pid)
        await execution.stream.send("core.exec.request", {"cmd": "true"}, SESSION_START)
        kind, payload = await execution.until_ended()
        assert (kind, payload["kind"]) == ("core.error", "invalid_session")
        await agent.check_alive()
    await watched.wait()


#= carrel.agent-itself.id-outside-range-broken
async def test_an_id_outside_the_range_disconnects_only_the_client_that_used_it(agentd):
    async with connected(agentd) as offender, connected(agentd) as bystander:
        lost = await Execution.start(offender, "sleep", "60")
        kept = await Execution.start(bystander, "cat")
        watched = agentd.watch(lost.pid)
        body = offender.encode("core.exec.request", {"cmd": "true"})
        await offender.client.send(kept.stream.id + 1, SESSION_START, body)
        await watched.wait()
        with pytest.raises(microsandbox.MicrosandboxError):
            await offender.check_alive()
        await kept.write(b"untouched")
        await kept.end_input()
        assert (await kept.finish()).stdout == b"untouched"


async def test_input_signals_and_sizes_for_an_exited_command_are_ignored(agentd):
    async with connected(agentd) as agent:
        stream = await agent.open("core.exec.request", {"cmd": "true"})
        assert [message.type async for message in stream] == ["core.exec.started", "core.exec.exited"]
        await stream.send("core.exec.stdin", {"data": b"late"})
        await stream.send("core.exec.signal", {"signal": 15})
        await stream.send("core.exec.resize", {"rows": 1, "cols": 1})
        await agent.check_alive()


async def test_an_invalid_signal_number_is_ignored(agentd):
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
async def test_the_largest_frame_is_accepted(agentd):
    # Four MiB after the length: five bytes of header, the envelope, and the data.
    async with connected(agentd) as agent:
        fixed = len(agent.encode("core.exec.request", {"cmd": "true", "padding": b"x" * 70_000})) - 70_000
        padding = b"x" * ((4 << 20) - 5 - fixed)
        assert len(agent.encode("core.exec.request", {"cmd": "true", "padding": padding})) == (4 << 20) - 5
        stream = await agent.open("core.exec.request", {"cmd": "true", "padding": padding})
        assert [message.type async for message in stream] == ["core.exec.started", "core.exec.exited"]
        assert (await run(agent, "echo", "on")).stdout == b"on\n"
