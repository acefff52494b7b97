"""The handshake: what the published client reads before it sends anything."""

import contextlib
import os

import microsandbox
import pytest

from clients.agent import connected
from clients.release import CLIENT

pytestmark = pytest.mark.release("agent_client")

SLOT = 33_554_431
SLOTS = 128


#= versioning.number-agreed-upon-once.during-handshake-side-learns
async def test_ready_announces_the_generation_and_three_timestamps(agentd):
    async with connected(agentd) as agent:
        ready = agent.ready
    assert (ready.type, ready.generation) == ("core.ready", agentd.generation)
    assert list(ready.payload)[:3] == ["boot_time_ns", "init_time_ns", "ready_time_ns"]
    assert all(type(ready.payload[key]) is int and ready.payload[key] >= 0 for key in list(ready.payload)[:3])
    assert isinstance(ready.payload["agent_version"], str) and ready.payload["agent_version"]


async def test_ready_offers_no_feature_that_agentd_does_not_have(agentd):
    async with connected(agentd) as agent:
        offered = set(agent.ready.payload)
    # Shared memory, leases and a second port belong to a relay; a client that sees them requires them.
    assert not offered & {"local_transport", "relay_lease", "bulk_transport", "exec_control"}


async def test_exec_limits_are_announced_from_generation_10_on(agentd):
    async with connected(agentd) as agent:
        limits = agent.ready.payload.get("exec_limits")
    if agentd.generation < 10:
        assert limits is None
    else:
        names = ["max_executions", "input_limit", "output_limit", "stdin_chunk_size", "output_chunk_size"]
        assert list(limits) == names and all(limits[name] > 0 for name in names)


async def test_each_client_is_given_the_lowest_free_range_of_ids(agentd):
    async with connected(agentd) as first, connected(agentd) as second, connected(agentd) as third:
        opened = [await agent.open("core.exec.request", {"cmd": "true"}) for agent in (first, second, third)]
    assert [stream.id for stream in opened] == [slot * SLOT + 1 for slot in range(3)]


async def test_ids_rise_by_one_within_a_connection(agentd):
    async with connected(agentd) as agent:
        opened = [await agent.open("core.exec.request", {"cmd": "true"}) for _ in range(3)]
    assert [stream.id for stream in opened] == [1, 2, 3]


async def test_a_client_can_reconnect_many_times(agentd):
    for _ in range(200):
        async with connected(agentd) as agent:
            await agent.check_alive()


#= promises.agent.clients-once-listen
async def test_the_129th_client_is_refused_and_the_others_continue(agentd):
    async with contextlib.AsyncExitStack() as clients:
        agents = [await clients.enter_async_context(connected(agentd)) for _ in range(SLOTS)]
        with pytest.raises(microsandbox.MicrosandboxError):
            await clients.enter_async_context(connected(agentd))
        for agent in agents:
            await agent.check_alive()


#= client.constants-functions.connectagentsandbox-name-core-ready
@pytest.mark.release("socket_path")
@pytest.mark.agentd_alone("a sandbox is found by its name without this, as test_relay.py shows")
async def test_a_client_finds_the_agent_by_the_name_of_its_sandbox(agentd):
    from microsandbox.agent import AgentClient

    path = AgentClient.socket_path("conformance")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(agentd.socket, path)
    try:
        client = await AgentClient.connect_sandbox("conformance")
        assert client.ready_bytes()
        await client.close()
    finally:
        os.unlink(path)


#= versioning.three-kinds-change.newer-side-keeps-old
async def test_a_client_accepts_the_legacy_prologue_too(start_agentd):
    agentd = start_agentd(1)
    async with connected(agentd) as first, connected(agentd) as second:
        assert (first.ready.generation, first.negotiated) == (1, 1)
        opened = [await agent.open("core.exec.request", {"cmd": "true"}) for agent in (first, second)]
        ends = [[message.type async for message in stream] for stream in opened]
    # Sixteen wide slots instead of 128 narrow ones.
    assert [stream.id for stream in opened] == [1, 268_435_456]
    assert ends == [["core.exec.started", "core.exec.exited"]] * 2


#= versioning.number-agreed-upon-once.version-message-generation-second
#= versioning.implementation-details.gate-behaviour-stamp-message
async def test_a_newer_stamp_than_that_of_the_agent_has_no_effect(start_agentd):
    agentd = start_agentd(max(1, CLIENT.generation - 1))
    async with connected(agentd) as agent:
        # The client stamps its own generation, which this agent does not know.
        await agent.check_alive()
