"""Starts and stops a program under test."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile

WATCHDOG_SECONDS = 60.0


class Program:
    """A running program that prints one line when it is ready."""

    def __init__(self, command: list[str], line: str, **environment: str) -> None:
        # No client may make it exit, unless a test expects it.
        self.may_exit = False
        self._log = tempfile.TemporaryFile()
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": self._log}
        self.process = subprocess.Popen(command, env=os.environ | environment, **pipes)
        try:
            self._wait_for_line(line.encode())
            self.on_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def on_ready(self) -> None:
        """Called once when the program is ready."""

    def terminate(self) -> int:
        """Terminates it, and returns its exit status; fails if it had already exited by itself."""
        exited = self.process.poll()
        if exited is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=WATCHDOG_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        errors = self.errors()
        self.process.stdout.close()
        self._log.close()
        name = self.process.args[0]
        assert exited is None or self.may_exit, f"{name} exited by itself with status {exited}:\n{errors}"
        if errors:
            print(f"{name} wrote:\n{errors}")
        return self.process.returncode

    def errors(self) -> str:
        """Its standard error."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _wait_for_line(self, expected: bytes) -> None:
        stdout = self.process.stdout
        line = b""
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                assert ready.select(WATCHDOG_SECONDS), f"the program is not ready:\n{self.errors()}"
                byte = os.read(stdout.fileno(), 1)
                assert byte, f"the program closed its output after {line!r}:\n{self.errors()}"
                line += byte
        assert line == expected + b"\n", line
