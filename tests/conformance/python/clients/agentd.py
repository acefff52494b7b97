"""Starts and ends the agentd under test."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
from pathlib import Path

from .release import NEWEST

WATCHDOG_SECONDS = 60.0


class Agentd:
    """A running agentd that listens on a socket of its own."""

    def __init__(self, generation: int = NEWEST) -> None:
        binary = os.environ.get("CARREL_AGENTD")
        assert binary, "CARREL_AGENTD does not name the agentd to test"
        self.generation = generation
        # A path of our own making: the one that pytest offers can be longer than a socket address may be.
        self._directory = tempfile.TemporaryDirectory(prefix="carrel-")
        self.socket = str(Path(self._directory.name) / "agent.sock")
        self._log = open(Path(self._directory.name) / "stderr", "w+b")
        command = [binary, "--listen", self.socket]
        if generation != NEWEST:
            command += ["--max-generation", str(generation)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log)
        try:
            self._wait_until_it_listens()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Ends it; complains if it had already ended, for nothing that a client sends may do that."""
        ended = self.process.poll()
        if ended is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        said = self._said()
        self.process.stdout.close()
        self._log.close()
        self._directory.cleanup()
        assert ended is None, f"agentd ended by itself with status {ended}:\n{said}"
        if said:
            print(f"agentd said:\n{said}")

    def _wait_until_it_listens(self) -> None:
        stdout = self.process.stdout
        line = b""
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                assert ready.select(WATCHDOG_SECONDS), "agentd did not say that it listens"
                byte = os.read(stdout.fileno(), 1)
                assert byte, f"agentd closed its output after {line!r}:\n{self._said()}"
                line += byte
        assert line == f"listening {self.socket}\n".encode(), line

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")
