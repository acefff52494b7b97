"""More output and input than buffers hold: acknowledgements at generation 10, backpressure below."""

import hashlib
import itertools

import pytest

from clients.agent import connected
from clients.execution import Execution, run

pytestmark = pytest.mark.release("agent_client")

MIB = 1 << 20


def numbers(size: int) -> bytes:
    """Bytes without repeated pieces, so that a lost or swapped one is detected."""
    text = b"".join(b"%d\n" % number for number in itertools.takewhile(lambda n: n < size // 6, itertools.count()))
    return (text * (size // len(text) + 1))[:size]


async def test_three_mebibytes_of_output_arrive_complete_and_in_order(agentd, tmp_path):
    data = numbers(3 * MIB)
    (tmp_path / "data").write_bytes(data)
    async with connected(agentd) as agent:
        outcome = await run(agent, "cat", str(tmp_path / "data"))
    assert outcome.exited == {"code": 0} and outcome.stderr == b""
    assert len(outcome.stdout) == len(data)
    assert hashlib.sha256(outcome.stdout).digest() == hashlib.sha256(data).digest()


async def test_concurrent_stdout_and_stderr_arrive_complete(agentd):
    script = "head -c 1500000 /dev/zero & head -c 1500000 /dev/zero | tr '\\0' e >&2; wait"
    async with connected(agentd) as agent:
        outcome = await run(agent, "sh", "-c", script)
    assert outcome.stdout == b"\0" * 1_500_000 and outcome.stderr == b"e" * 1_500_000
    assert outcome.exited == {"code": 0}


async def test_three_mebibytes_are_piped_through_a_command(agentd):
    data = numbers(3 * MIB)
    async with connected(agentd) as agent:
        outcome = await run(agent, "cat", stdin=data)
    assert outcome.stdout == data and outcome.exited == {"code": 0}


#= carrel.commands.flow-control-generation-10
#= promises.protocol.output-command-without-acknowledgement
@pytest.mark.generation(lowest=10)
async def test_output_stops_at_the_window_and_continues_after_the_acknowledgement(agentd):
    async with connected(agentd) as agent:
        limits = agent.exec_limits
        execution = await Execution.start(agent, "head", "-c", str(3 * MIB), "/dev/zero")
        execution.acknowledging = False
        await execution.end_input()
        # The window has no space for another full chunk. Short chunks are allowed, so more cannot be expected.
        room = limits["output_chunk_size"] + 256
        await execution.until(lambda: execution.charged > limits["output_limit"] - room)
        for _ in range(3):
            await agent.check_alive()
        assert execution.charged <= limits["output_limit"] and execution.ended is None
        await execution.acknowledge()
        outcome = await execution.finish()
    assert outcome.stdout == b"\0" * (3 * MIB) and outcome.exited == {"code": 0}


@pytest.mark.generation(lowest=10)
async def test_an_exit_is_sent_without_an_acknowledgement(agentd):
    async with connected(agentd) as agent:
        stream = await agent.open("core.exec.request", {"cmd": "echo", "args": ["last line"]})
        await stream.expect("core.exec.started")
        assert (await stream.expect("core.exec.stdout"))["data"] == b"last line\n"
        assert (await stream.next()).type == "core.exec.exited"


#= carrel.commands.flow-control-generation-10
@pytest.mark.generation(lowest=10)
async def test_a_stalled_command_does_not_block_another(agentd):
    async with connected(agentd) as agent:
        stalled = await Execution.start(agent, "cat", "/dev/zero")
        stalled.acknowledging = False
        room = agent.exec_limits["output_chunk_size"] + 256
        await stalled.until(lambda: stalled.charged > agent.exec_limits["output_limit"] - room)
        outcome = await run(agent, "echo", "through")
        assert (outcome.stdout, outcome.exited) == (b"through\n", {"code": 0})
        await stalled.signal(9)
        await stalled.acknowledge()
        assert (await stalled.finish()).exited == {"code": -1, "signal": 9}
