"""Ping, and touch, which counts activity."""

import pytest

from clients.agent import connected

pytestmark = [pytest.mark.release("agent_client"), pytest.mark.generation(lowest=6)]


#= carrel.agent-itself.ping-touch
async def test_ping_is_answered_by_an_empty_pong(agentd):
    async with connected(agentd) as agent:
        pong = await agent.ask("core.ping")
    assert (pong.type, pong.payload, pong.flags) == ("core.pong", {}, 1)


#= carrel.agent-itself.ping-touch
async def test_touch_increments_the_activity_count(agentd):
    async with connected(agentd) as agent:
        answers = [await agent.ask("core.touch") for _ in range(3)]
    assert [answer.type for answer in answers] == ["core.touched"] * 3
    assert all(list(answer.payload) == ["activity_seq"] for answer in answers)
    first, second, third = (answer.payload["activity_seq"] for answer in answers)
    assert first < second < third


#= carrel.agent-itself.ping-touch
async def test_ping_does_not_count_as_activity(agentd):
    async with connected(agentd) as agent:
        before = (await agent.ask("core.touch")).payload["activity_seq"]
        for _ in range(10):
            await agent.check_alive()
        after = (await agent.ask("core.touch")).payload["activity_seq"]
    # The second touch itself may count more than once, ten pings may not count at all.
    assert after - before <= 2
