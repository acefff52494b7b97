"""A program that uses the package dies, and agentd cleans up after it."""

import asyncio
import os
import subprocess
import sys

from clients.sandbox import attach, enter, run

# Says the number of a process that it started inside the sandbox, and then waits for its own end.
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


#= carrel.agent-itself.withdrawn-range-ends-nobody
async def test_a_program_that_is_killed_takes_its_processes_along(agentd, tmp_path):
    name, bystander = enter(agentd), await attach(agentd)
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, name, stdout=subprocess.PIPE)
    try:
        pids = [int(word) for word in (await program.stdout.readline()).split()]
        assert len(pids) == 2 and os.getpid() not in pids
        watched = [agentd.watch(pid) for pid in pids]
    finally:
        program.kill()
        await program.wait()
    await asyncio.gather(*(process.ended() for process in watched))
    assert await run(bystander, tmp_path, "echo on") == (0, b"on\n", b"")
