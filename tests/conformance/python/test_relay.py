"""The relay of a sandbox: connection by name and by path, ranges of ids, misbehaving clients, and shutdown."""

import asyncio
import contextlib
import signal
import stat

import pytest

from clients.agent import connected, using
from clients.execution import Execution, run
from clients.messages import SESSION_START, SHUTDOWN, encode
from clients.raw import RawClient, frame
from clients.release import CLIENT
from clients.tunnel import Tunnel

pytestmark = [pytest.mark.release("relay"), pytest.mark.release("agent_client")]

SLOT = 33_554_431
SLOTS = 128

# Prints its port, and answers a client in capital letters. Perl is on every Debian.
LISTENER = """
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 1) or die;
$| = 1;
print $server->sockport, "\\n";
my $connection = $server->accept;
$/ = undef;
print $connection uc <$connection>;
"""


#= carrel.supervisor.socket-served-path-follows
#= promises.published-clients.ways-find-sandbox-behind
@pytest.mark.release("socket_path")
async def test_a_client_finds_a_sandbox_by_its_name(sandbox):
    from microsandbox.agent import AgentClient

    assert AgentClient.socket_path(sandbox.name) == sandbox.socket
    async with using(AgentClient.connect_sandbox(sandbox.name)) as agent:
        assert (await run(agent, "hostname")).stdout == b"carrel\n"


#= carrel.supervisor.socket-served-path-follows
#= promises.published-clients.ways-find-sandbox-behind
async def test_a_client_finds_a_sandbox_by_its_path_in_a_private_directory(sandbox):
    async with connected(sandbox) as agent:
        assert (await run(agent, "hostname")).stdout == b"carrel\n"
    assert stat.S_IMODE(sandbox.directory.stat().st_mode) == 0o700


#= promises.published-clients.ways-find-sandbox-behind
@pytest.mark.release("socket_path")
async def test_a_sandbox_that_ended_is_not_found(sandbox):
    import microsandbox
    from microsandbox.agent import AgentClient

    sandbox.process.terminate()
    assert await sandbox.wait() == 128 + signal.SIGTERM
    with pytest.raises(microsandbox.MicrosandboxError, match="not found"):
        await AgentClient.connect_sandbox(sandbox.name)


#= carrel.relay.prologue-id-range-core
#= carrel.relay.128-slots-lowest-free
#= promises.relay.clients-once
async def test_every_slot_has_the_published_range_of_ids_and_the_last_one_half_a_range(sandbox):
    slots = range(SLOTS)
    async with contextlib.AsyncExitStack() as clients:
        ids = []
        for _ in slots:
            client = await RawClient.connect(sandbox.socket)
            clients.push_async_callback(client.close)
            ids.append(client.ids)
        # The other half of the last range belongs to the relay.
        *others, last = [range(slot * SLOT + 1, (slot + 1) * SLOT) for slot in slots]
        assert ids == [*others, last[: SLOT // 2]]
        # One too many receives no bytes at all.
        reader, writer = await asyncio.open_unix_connection(sandbox.socket)
        assert await reader.read() == b""
        writer.close()


#= carrel.relay.128-slots-lowest-free
#= carrel.relay.client-leaves-sessions-ended
#= promises.relay.client-leaves
async def test_the_slot_of_a_disconnected_client_is_reused(sandbox):
    async with connected(sandbox) as staying:
        async with connected(sandbox) as leaving:
            execution = await Execution.start(leaving, "sleep", "60")
            watched = sandbox.watch(execution.pid)
        await watched.wait()
        # The agent sends this answer after it has reported that the sessions of the other are closed.
        await staying.check_alive()
        async with connected(sandbox) as next_client:
            stream = await next_client.open("core.exec.request", {"cmd": "true"})
            assert stream.id == execution.stream.id


#= carrel.relay.ids-outside-range-flags
#= promises.published-clients.ids-other-client-none-relay
@pytest.mark.parametrize("whose", ["another client", "a free slot", "the relay", "the channel"])
async def test_a_client_that_uses_a_foreign_id_is_disconnected_and_no_other(sandbox, whose):
    async with connected(sandbox) as bystander:
        kept = await Execution.start(bystander, "cat")
        free, relay = 9 * SLOT + 1, SLOTS * SLOT - 1
        ids = {"another client": kept.stream.id, "a free slot": free, "the relay": relay, "the channel": 0}
        offender = await RawClient.connect(sandbox.socket)
        own = encode(CLIENT.generation, "core.exec.request", {"cmd": "sleep", "args": ["60"]})
        await offender.send(offender.ids[0], SESSION_START, own)
        started = await offender.next()
        assert started and started[:2] == (offender.ids[0], 0)
        # For the right client, this would kill the command.
        await offender.send(ids[whose], 0, encode(CLIENT.generation, "core.exec.signal", {"signal": 9}))
        assert await offender.next() is None
        await offender.close()
        await kept.write(b"untouched")
        await kept.end_input()
        outcome = await kept.finish()
    assert (outcome.stdout, outcome.exited) == (b"untouched", {"code": 0})


#= carrel.relay.never-waits-client-guest
#= promises.relay.timeout-client-middle-frame
@pytest.mark.parametrize("size", [100, 4 << 20], ids=["small", "largest"])
async def test_a_client_that_stops_in_the_middle_of_a_frame_blocks_no_other(sandbox, size):
    async with connected(sandbox) as bystander:
        unfinished = await RawClient.connect(sandbox.socket)
        whole = frame(unfinished.ids[0], SESSION_START, bytes(size - 5))
        await unfinished.send_bytes(whole[: len(whole) // 2])
        assert (await run(bystander, "echo", "through")).stdout == b"through\n"
        await unfinished.close()
        assert (await run(bystander, "echo", "and again")).stdout == b"and again\n"


#= promises.published-clients.listeners-reach-through-sandbox
async def test_a_listener_of_a_command_can_be_reached(sandbox):
    async with connected(sandbox) as agent:
        listener = await Execution.start(agent, "perl", "-e", LISTENER)
        await listener.until(lambda: listener.stdout.endswith(b"\n"))
        tunnel = await Tunnel.open(agent, int(listener.stdout))
        await tunnel.send(b"from outside")
        await tunnel.end()
        assert await tunnel.finish() == b"FROM OUTSIDE"
        assert (await listener.finish()).exited == {"code": 0}


#= promises.published-clients.listeners-reach-through-sandbox
async def test_a_listener_of_the_host_cannot_be_reached(sandbox):
    # The control: the host can reach it.
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server, connected(sandbox) as agent:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        tunnel = await Tunnel.open(agent, port)
        assert tunnel.ended and tunnel.ended[0] == "core.tcp.failed"


#= carrel.relay.client-shut-sandbox-down
#= promises.published-clients.ids-other-client-none-relay
async def test_any_client_can_shut_the_sandbox_down(sandbox):
    async with connected(sandbox) as witness, connected(sandbox) as client:
        execution = await Execution.start(witness, "sleep", "60")
        watched = sandbox.watch(execution.pid)
        await client.client.send(0, SHUTDOWN, encode(CLIENT.generation, "core.shutdown", None))
        await watched.wait()
        # The command that owns the sandbox is terminated like every other.
        assert await sandbox.wait() == 128 + signal.SIGTERM
