"""Starts and ends the agentd under test."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from .processes import Watched
from .program import Program
from .release import NEWEST


class Agentd(Program):
    """A running agentd that listens on a socket of its own."""

    def __init__(self, generation: int = NEWEST) -> None:
        binary = os.environ.get("CARREL_AGENTD")
        assert binary, "CARREL_AGENTD does not name the agentd to test"
        self.generation = generation
        # A path of our own making: the one that pytest offers can be longer than a socket address may be.
        self._directory = tempfile.TemporaryDirectory(prefix="carrel-")
        self.socket = str(Path(self._directory.name) / "agent.sock")
        command = [binary, "--listen", self.socket]
        if generation != NEWEST:
            command += ["--max-generation", str(generation)]
        super().__init__(command, f"listening {self.socket}")

    def stop(self) -> None:
        try:
            self.end()
        finally:
            self._directory.cleanup()

    def watch(self, pid: int) -> Watched:
        """A process that agentd calls by this number."""
        return Watched(pid)

    def bound_socket(self) -> socket.socket:
        """A socket on a port of its own, in the network of the commands."""
        return bound_socket()


def bound_socket() -> socket.socket:
    """A socket that does not listen yet: until then nobody else can take the port, and the kernel refuses who comes."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound
