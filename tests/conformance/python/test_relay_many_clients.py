"""Clients of one sandbox in several processes: none disturbs another, whatever it sends and however it exits."""

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from clients.agent import connected
from clients.execution import Execution, run
from clients.messages import TERMINAL, decode
from clients.raw import RawClient, frame

pytestmark = [pytest.mark.release("relay"), pytest.mark.release("agent_client")]

FLOOD = 10_000
# Noise, an empty body, a map without the keys, a list, a truncated message, and noise that fills a socket.
BODIES = [b"\xff\x00 no CBOR at all", b"", b"\xa0", b"\x83\x01\x02\x03", b"\xa3avcnowatapa", b"\xff" * 50_000]

# Prints its first id, waits for a line, runs commands, and prints `fine` if they succeed.
WORKER = """
import asyncio, sys
from microsandbox.agent import AgentClient
from clients.agent import using
from clients.execution import run
from clients.files import get, put

async def main(socket, path, name):
    async with using(AgentClient.connect(socket)) as agent:
        stream = await agent.open("core.exec.request", {"cmd": "true"})
        print(stream.id, flush=True)
        sys.stdin.readline()
        for number in range(20):
            outcome = await run(agent, "sh", "-c", f"echo {name} {number}; exit {number}")
            assert (outcome.stdout, outcome.exited) == (f"{name} {number}\\n".encode(), {"code": number})
        data = name.encode() * (3 << 20)
        await put(agent, path, data)
        assert (await get(agent, path)).data == data
        print("fine", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""

# Prints the pids of two processes that it started, then `moving`, and transfers data until it is killed.
TRANSFER = """
import asyncio, sys
from microsandbox.agent import AgentClient
from clients.agent import using
from clients.execution import Execution
from clients.files import Files

MIB = 1 << 20

async def output(agent, execution):
    await execution.write(b"go\\n")
    await execution.until(lambda: len(execution.stdout) > 4 * MIB)
    yield
    await execution.until_ended()

async def input(agent, execution):
    await execution.write(bytes(4 * MIB))
    yield
    while True:
        await execution.write(bytes(MIB))

async def file(agent, execution):
    handle = await Files(agent).open("/dev/null", "write")
    write = {"op": {"Write": {"handle": handle, "offset": 0, "len": None}}}
    stream = await agent.open("core.fs.request", write)
    for number in range(1 << 30):
        await stream.send("core.fs.data", {"data": bytes(MIB)})
        if number == 4:
            yield

SCRIPTS = {"output": "read go; exec cat /dev/zero", "input": "exec cat >/dev/null", "file": "wait"}

async def main(socket, kind):
    async with using(AgentClient.connect(socket)) as agent:
        execution = await Execution.start(agent, "sh", "-c", "sleep 60 & echo $$ $!; " + SCRIPTS[kind])
        await execution.until(lambda: b"\\n" in execution.stdout)
        print(execution.stdout.decode(), end="", flush=True)
        async for _ in globals()[kind](agent, execution):
            print("moving", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def program(text: str, *arguments: str) -> asyncio.subprocess.Process:
    """Starts a program that uses the package in a separate process."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": Path(__file__).parent}
    return await asyncio.create_subprocess_exec(sys.executable, "-B", "-c", text, *arguments, **pipes)


async def kill(*programs: asyncio.subprocess.Process) -> None:
    for started in programs:
        if started.returncode is None:
            started.kill()
        await started.wait()


#= carrel.relay.two-published-clients-disturb
#= promises.published-clients.two-once-processes
async def test_clients_in_two_processes_do_not_disturb_each_other(sandbox, tmp_path):
    async with connected(sandbox) as witness:
        kept = await Execution.start(witness, "cat")
        workers = [await program(WORKER, sandbox.socket, str(tmp_path / name), name) for name in "ab"]
        try:
            ids = [int(await worker.stdout.readline()) for worker in workers]
            assert len({kept.stream.id, *ids}) == 3
            outputs = await asyncio.gather(*(worker.communicate(b"go\n") for worker in workers))
            assert [stdout for stdout, _ in outputs] == [b"fine\n"] * 2
        finally:
            await kill(*workers)
        for name in "ab":
            assert (tmp_path / name).read_bytes() == name.encode() * (3 << 20)
        await kept.write(b"undisturbed")
        await kept.end_input()
        assert (await kept.finish()).stdout == b"undisturbed"


#= carrel.relay.two-published-clients-disturb
#= promises.published-clients.two-once-processes
@pytest.mark.parametrize("kind", ["output", "input", "file"])
async def test_a_client_that_is_killed_during_a_transfer_takes_only_its_own_commands_along(sandbox, kind):
    async with connected(sandbox) as bystander:
        kept = await Execution.start(bystander, "cat")
        transfer = await program(TRANSFER, sandbox.socket, kind)
        try:
            pids = [int(word) for word in (await transfer.stdout.readline()).split()]
            assert await transfer.stdout.readline() == b"moving\n"
            watched = [sandbox.watch(pid) for pid in pids]
            await kept.write(b"before ")
            await kept.until(lambda: kept.stdout == b"before ")
        finally:
            await kill(transfer)
        await asyncio.gather(*(process.wait() for process in watched))
        await kept.write(b"and after")
        await kept.end_input()
        outcome = await kept.finish()
        assert (await run(bystander, "echo", "on")).stdout == b"on\n"
    assert (outcome.stdout, outcome.exited) == (b"before and after", {"code": 0})


#= carrel.relay.routing-id-without-decoding
#= promises.relay.bodies-reads
@pytest.mark.generation(lowest=5)
async def test_a_flood_of_malformed_bodies_is_answered_one_by_one_while_another_client_works(sandbox):
    rounds = 10
    async with connected(sandbox) as flooding, connected(sandbox) as bystander:
        kept = await Execution.start(bystander, "cat")
        bodies = itertools.cycle(BODIES)
        answered = 0
        for number in range(rounds):
            flood = (flooding.ask_bytes(next(bodies), 0) for _ in range(FLOOD // rounds))
            *answers, _ = await asyncio.gather(*flood, kept.write(b"%d\n" % number))
            kinds = [decode(answer).payload["kind"] for answer in answers]
            assert set(kinds) == {"malformed_message"}
            answered += len(kinds)
        await kept.end_input()
        assert (await kept.finish()).stdout == b"".join(b"%d\n" % number for number in range(rounds))
        await flooding.check_alive()
    assert answered == FLOOD


#= carrel.relay.never-waits-client-guest
#= promises.relay.client-too-much-waits
async def test_a_client_that_does_not_read_the_answers_to_its_flood_blocks_only_itself(sandbox):
    async with connected(sandbox) as bystander:
        flooding = await RawClient.connect(sandbox.socket)
        # More answers than the relay buffers for a client, and then more requests than it buffers from one.
        ids = flooding.ids[: 3 * FLOOD]
        flood = b"".join(frame(id, 0, b"\xff" * 1000) for id in ids)
        sending = asyncio.create_task(flooding.send_bytes(flood))
        for number in range(20):
            assert (await run(bystander, "echo", str(number))).stdout == b"%d\n" % number
        assert not sending.done()
        answers = [await flooding.next() for _ in ids]
        await sending
        await flooding.close()
        assert (await run(bystander, "echo", "on")).stdout == b"on\n"
    assert [(id, flags) for id, flags, _ in answers] == [(id, TERMINAL) for id in ids]
