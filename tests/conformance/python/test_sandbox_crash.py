"""A program that uses the package is killed, and agentd cleans up after it."""

import asyncio
import os
import subprocess
import sys

from clients.sandbox import attach, register, run

# Prints the pids of processes that it started inside the sandbox, and then waits to be killed.
PROGRAM = """
import asyncio, sys, microsandbox

async def main():
    sandbox = await (await microsandbox.Sandbox.get(sys.argv[1])).connect()
    handle = await sandbox.exec_stream("sh", ["-c", "sleep 60 & echo $$ $!; wait"])
    async for event in handle:
        if event.data:
            print(event.data.decode(), end="", flush=True)

asyncio.run(main())
"""


#= carrel.agent-itself.withdrawn-range-ends-its-sessions
async def test_the_processes_of_a_killed_program_are_killed(agentd, tmp_path):
    name, bystander = register(agentd), await attach(agentd)
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, name, stdout=subprocess.PIPE)
    try:
        pids = [int(word) for word in (await program.stdout.readline()).split()]
        assert len(pids) == 2 and os.getpid() not in pids
        watched = [agentd.watch(pid) for pid in pids]
    finally:
        program.kill()
        await program.wait()
    await asyncio.gather(*(process.wait() for process in watched))
    assert await run(bystander, tmp_path, "echo on") == (0, b"on\n", b"")
