"""The package attaches the terminal of a user to a command: keys, size, and resize."""

import asyncio
import contextlib
import fcntl
import os
import struct
import sys
import termios

from clients.sandbox import register

# Attaches its own terminal to the command, and exits with the code of the command.
PROGRAM = """
import asyncio, os, sys, microsandbox

async def main():
    sandbox = await (await microsandbox.Sandbox.get(sys.argv[1])).connect()
    return await sandbox.attach("sh", ["-c", sys.argv[2]])

os._exit(asyncio.run(main()))
"""


class Terminal:
    """The controlling side of a pseudo-terminal on which a program runs."""

    def __init__(self, rows: int, cols: int) -> None:
        self._ours, self._theirs = os.openpty()
        os.set_blocking(self._ours, False)
        self.resize(rows, cols)
        self.displayed = b""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    async def run(self, *command: str) -> asyncio.subprocess.Process:
        """Starts a program with this as its controlling terminal."""
        theirs = self._theirs

        def make_controlling() -> None:
            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        files = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        program = await asyncio.create_subprocess_exec(*command, preexec_fn=make_controlling, **files)
        os.close(theirs)
        return program

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, keys: bytes) -> None:
        assert os.write(self._ours, keys) == len(keys)

    async def until(self, text: bytes) -> None:
        """Waits until this text is displayed."""
        while text not in self.displayed:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)

    def _read(self) -> None:
        try:
            self.displayed += os.read(self._ours, 65536)
        except OSError:
            # The program has exited, and with it the last user of the other side.
            asyncio.get_running_loop().remove_reader(self._ours)
        self._changed.set()


#= carrel.commands.terminal-size-resized-echoing
async def test_a_terminal_is_attached_to_a_command_and_resized(agentd):
    # The command exits when it has the new size, so the order of events does not matter.
    ending = "trap 'echo resized to $(stty size); exit 5' WINCH"
    script = f"{ending}; stty size; read line; echo read $line; while :; do sleep 0.1; done"
    with contextlib.closing(Terminal(rows=31, cols=117)) as terminal:
        program = await terminal.run(sys.executable, "-c", PROGRAM, register(agentd), script)
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
