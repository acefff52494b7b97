"""The package joins a person's terminal to a command: its keys, its size, and the change of its size."""

import asyncio
import contextlib
import fcntl
import os
import struct
import sys
import termios

from clients.sandbox import enter

# Joins its own terminal to the command, and exits with the command's code.
PROGRAM = """
import asyncio, os, sys, microsandbox

async def main():
    sandbox = await (await microsandbox.Sandbox.get(sys.argv[1])).connect()
    return await sandbox.attach("sh", ["-c", sys.argv[2]])

os._exit(asyncio.run(main()))
"""


class Terminal:
    """The far side of a terminal on which a program runs."""

    def __init__(self, rows: int, cols: int) -> None:
        self._ours, self._theirs = os.openpty()
        os.set_blocking(self._ours, False)
        self.resize(rows, cols)
        self.shown = b""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    async def run(self, *command: str) -> asyncio.subprocess.Process:
        """Starts a program to which this is the controlling terminal."""
        theirs = self._theirs

        def take_it() -> None:
            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        files = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        program = await asyncio.create_subprocess_exec(*command, preexec_fn=take_it, **files)
        os.close(theirs)
        return program

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, keys: bytes) -> None:
        assert os.write(self._ours, keys) == len(keys)

    async def until(self, text: bytes) -> None:
        """Waits until this text was shown."""
        while text not in self.shown:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)

    def _read(self) -> None:
        try:
            self.shown += os.read(self._ours, 65536)
        except OSError:
            # The program has ended, and with it the last user of the other side.
            asyncio.get_running_loop().remove_reader(self._ours)
        self._changed.set()


#= carrel.commands.terminal-size-resized-echoing
async def test_a_terminal_is_joined_to_a_command_and_resized_with_it(agentd):
    # The command ends itself when the new size has come, so nothing depends on which of two events is seen first.
    ending = "trap 'echo resized to $(stty size); exit 5' WINCH"
    script = f"{ending}; stty size; read line; echo read $line; while :; do sleep 0.1; done"
    with contextlib.closing(Terminal(rows=31, cols=117)) as terminal:
        program = await terminal.run(sys.executable, "-c", PROGRAM, enter(agentd), script)
        try:
            await terminal.until(b"31 117")
            terminal.type(b"some keys\r")
            await terminal.until(b"read some keys")
            terminal.resize(33, 101)
            await terminal.until(b"resized to 33 101")
            assert await program.wait() == 5
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
