"""Starts and stops the agentd under test."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from .processes import WatchedProcess
from .program import Program
from .release import NEWEST


class Agentd(Program):
    """A running agentd that listens on its own socket."""

    def __init__(self, generation: int = NEWEST) -> None:
        binary = os.environ.get("CARREL_AGENTD")
        assert binary, "CARREL_AGENTD does not name the agentd to test"
        self.generation = generation
        # Not a directory of pytest: its path can be too long for a socket address.
        self._directory = tempfile.TemporaryDirectory(prefix="carrel-")
        self.socket = str(Path(self._directory.name) / "agent.sock")
        command = [binary, "--listen", self.socket]
        if generation != NEWEST:
            command += ["--max-generation", str(generation)]
        super().__init__(command, f"listening {self.socket}")

    def stop(self) -> None:
        try:
            self.terminate()
        finally:
            self._directory.cleanup()

    def watch(self, pid: int) -> WatchedProcess:
        """The process with this pid in the sandbox."""
        return WatchedProcess(pid)

    def bound_socket(self) -> socket.socket:
        """A socket that is bound to a free port in the network of the commands."""
        return bound_socket()


def bound_socket() -> socket.socket:
    """A socket that is bound but does not listen: the port is reserved, and the kernel refuses connections."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound
