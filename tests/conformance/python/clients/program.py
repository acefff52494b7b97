"""Starts and ends a program under test."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile

WATCHDOG_SECONDS = 60.0


class Program:
    """A running program that says one line when it is up."""

    def __init__(self, command: list[str], line: str, **environment: str) -> None:
        # Nothing that a client sends may end it, except where a test says so.
        self.may_end = False
        self._log = tempfile.TemporaryFile()
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": self._log}
        self.process = subprocess.Popen(command, env=os.environ | environment, **pipes)
        try:
            self._wait_until_it_says(line.encode())
            self.look()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def look(self) -> None:
        """Looks at it once it is up."""

    def end(self) -> int:
        """Ends it, and returns its status; complains if it had already ended by itself."""
        ended = self.process.poll()
        if ended is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=WATCHDOG_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        said = self.said()
        self.process.stdout.close()
        self._log.close()
        assert ended is None or self.may_end, f"{self.process.args[0]} ended by itself with status {ended}:\n{said}"
        if said:
            print(f"{self.process.args[0]} said:\n{said}")
        return self.process.returncode

    def said(self) -> str:
        """What it wrote to its standard error."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _wait_until_it_says(self, wanted: bytes) -> None:
        stdout = self.process.stdout
        line = b""
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                assert ready.select(WATCHDOG_SECONDS), f"it did not say that it is up:\n{self.said()}"
                byte = os.read(stdout.fileno(), 1)
                assert byte, f"it closed its output after {line!r}:\n{self.said()}"
                line += byte
        assert line == wanted + b"\n", line
