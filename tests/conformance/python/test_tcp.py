"""TCP connections from the agent: both halves, data in messages and in records, and failures."""

import asyncio
import contextlib
import os

import pytest

from clients.agent import connected
from clients.tunnel import WINDOW, Tunnel

pytestmark = [pytest.mark.release("agent_client"), pytest.mark.generation(lowest=4)]

MIB = 1 << 20


@contextlib.asynccontextmanager
async def listener(agentd):
    """A listener on a free port, and the connections that it accepted."""
    accepted = asyncio.Queue()
    server = await asyncio.start_server(lambda *pair: accepted.put_nowait(pair), sock=agentd.bound_socket())
    async with server:
        yield server.sockets[0].getsockname()[1], accepted


@contextlib.asynccontextmanager
async def pair(agentd, **options):
    """A tunnel, and the connection at its far end."""
    async with connected(agentd) as agent, listener(agentd) as (port, accepted):
        tunnel = await Tunnel.open(agent, port, **options)
        reader, writer = await accepted.get()
        yield agent, tunnel, reader, writer
        writer.close()


#= carrel.files-trees-connections.connect-data-half-close
async def test_data_is_sent_in_both_directions(agentd):
    async with pair(agentd) as (_, tunnel, reader, writer):
        await tunnel.send(b"question")
        assert await reader.readexactly(8) == b"question"
        writer.write(b"answer")
        await tunnel.until(lambda: tunnel.received == b"answer")


#= carrel.files-trees-connections.connect-data-half-close
async def test_our_half_can_close_while_the_other_stays_open(agentd):
    async with pair(agentd) as (_, tunnel, reader, writer):
        await tunnel.send(b"all of it")
        await tunnel.end()
        assert await reader.read() == b"all of it"
        assert not tunnel.ended
        writer.write(b"after the end")
        writer.write_eof()
        assert await tunnel.finish() == b"after the end"


#= carrel.files-trees-connections.connect-data-half-close
async def test_the_other_half_can_close_while_ours_stays_open(agentd):
    async with pair(agentd) as (_, tunnel, reader, writer):
        writer.write(b"done here")
        writer.write_eof()
        await tunnel.until(lambda: tunnel.peer_ended)
        assert tunnel.received == b"done here" and not tunnel.ended
        await tunnel.send(b"still listening?")
        await tunnel.end()
        assert await reader.read() == b"still listening?"
        assert await tunnel.finish() == b"done here"


async def test_five_mebibytes_are_sent_in_both_directions_at_once(agentd):
    upward, downward = os.urandom(5 * MIB), os.urandom(5 * MIB)
    async with pair(agentd) as (agent, tunnel, reader, writer):

        async def far_end():
            async def send_all():
                writer.write(downward)
                await writer.drain()
                writer.write_eof()

            received, _ = await asyncio.gather(reader.read(), send_all())
            return received

        async def near_end():
            await tunnel.send(upward)
            await tunnel.end()

        received, _ = await asyncio.gather(far_end(), near_end())
        assert received == upward
        assert await tunnel.finish() == downward
        if agent.negotiated >= 8:
            assert tunnel.credits > 0


@pytest.mark.generation(lowest=8)
async def test_without_an_offer_data_stays_inside_messages(agentd):
    async with pair(agentd, bulk=False) as (_, tunnel, reader, writer):
        await tunnel.send(b"plain")
        await tunnel.end()
        assert await reader.read() == b"plain"
        writer.write(b"as before")
        writer.write_eof()
        assert await tunnel.finish() == b"as before"


#= carrel.files-trees-connections.connections-bulk-generation-8
@pytest.mark.generation(lowest=8)
async def test_a_server_that_sends_too_much_waits_for_credit(agentd):
    async with pair(agentd) as (agent, tunnel, _, writer):
        writer.write(b"x" * (3 * WINDOW))
        writer.write_eof()
        # The tunnel asserts at each record that it was within the credit given so far.
        await tunnel.until(lambda: tunnel.peer_ended)
        await tunnel.end()
        assert await tunnel.finish() == b"x" * (3 * WINDOW)
        await agent.check_alive()


async def test_an_empty_data_message_does_not_close_the_connection(agentd):
    async with pair(agentd, bulk=False) as (_, tunnel, reader, writer):
        await tunnel.stream.send("core.tcp.data", {"data": b""})
        await tunnel.send(b"more")
        assert await reader.readexactly(4) == b"more"


#= carrel.files-trees-connections.connect-data-half-close
async def test_a_refused_connection_fails_with_the_reason(agentd):
    with agentd.bound_socket() as closed:
        async with connected(agentd) as agent:
            tunnel = await Tunnel.open(agent, closed.getsockname()[1])
            assert tunnel.ended and tunnel.ended[0] == "core.tcp.failed"
            assert "refused" in tunnel.ended[1]["error"].lower()
            await agent.check_alive()


#= carrel.files-trees-connections.connect-data-half-close
async def test_a_close_drops_the_connection_without_an_answer(agentd):
    async with pair(agentd) as (agent, tunnel, reader, _):
        await tunnel.abort()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await agent.check_alive()
        assert tunnel.ended is None


async def test_a_disconnect_closes_the_connections_of_the_client(agentd):
    async with listener(agentd) as (port, accepted):
        async with connected(agentd) as agent:
            await Tunnel.open(agent, port)
            reader, writer = await accepted.get()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
