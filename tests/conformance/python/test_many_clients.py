"""Several clients of one agent: each has its own sessions and handles, and a disconnect affects only its own."""

import asyncio

import pytest

from clients.agent import connected
from clients.execution import Execution, run
from clients.files import FileOperationError, Files, get, put

pytestmark = pytest.mark.release("agent_client")


async def test_two_clients_run_commands_at_once(agentd):
    async with connected(agentd) as first, connected(agentd) as second:
        one, two = await Execution.start(first, "cat"), await Execution.start(second, "cat")
        await one.write(b"first ")
        await two.write(b"second ")
        await one.until(lambda: one.stdout == b"first ")
        await two.until(lambda: two.stdout == b"second ")
        await one.write(b"again")
        await two.write(b"again")
        await one.end_input()
        await two.end_input()
        outcomes = await one.finish(), await two.finish()
    assert [outcome.stdout for outcome in outcomes] == [b"first again", b"second again"]


#= carrel.agent-itself.withdrawn-range-ends-its-sessions
async def test_a_disconnect_kills_the_processes_of_the_client_and_their_children(agentd):
    async with connected(agentd) as staying:
        kept = await Execution.start(staying, "cat")
        async with connected(agentd) as leaving:
            execution = await Execution.start(leaving, "sh", "-c", "sleep 60 & echo $!; wait")
            await execution.until(lambda: execution.stdout.endswith(b"\n"))
            watched = [agentd.watch(execution.pid), agentd.watch(int(execution.stdout))]
        await asyncio.gather(*(process.wait() for process in watched))
        await kept.write(b"still here")
        await kept.end_input()
        outcome = await kept.finish()
    assert (outcome.stdout, outcome.exited) == (b"still here", {"code": 0})


async def test_sixteen_clients_run_commands_at_once(agentd):
    async def client(number):
        async with connected(agentd) as agent:
            outcomes = [await run(agent, "sh", "-c", f"echo {number}; exit {number}") for _ in range(5)]
            return [(outcome.stdout, outcome.exited) for outcome in outcomes]

    results = await asyncio.gather(*(client(number) for number in range(16)))
    assert results == [[(f"{number}\n".encode(), {"code": number})] * 5 for number in range(16)]


@pytest.mark.release("files")
async def test_two_clients_transfer_large_files_at_once(agentd, tmp_path):
    async def client(number):
        data, path = bytes([number]) * (3 << 20), str(tmp_path / str(number))
        async with connected(agentd) as agent:
            await put(agent, path, data)
            return (await get(agent, path)).data == data

    assert await asyncio.gather(client(1), client(2)) == [True, True]


#= carrel.files-trees-connections.handles-belong-client
@pytest.mark.release("files")
async def test_a_handle_belongs_to_the_client_that_opened_it(agentd, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"private")
    async with connected(agentd) as owner, connected(agentd) as other:
        handle = await Files(owner).open(str(path), "read")
        for operation in (Files(other).read(handle), Files(other).close(handle)):
            with pytest.raises(FileOperationError):
                await operation
        assert (await Files(owner).read(handle)).data == b"private"
