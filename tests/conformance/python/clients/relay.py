"""Starts and ends a sandbox, whose relay stands between the clients and its agentd."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import select
import signal
import socket
import threading
from pathlib import Path

from .agentd import bound_socket
from .processes import Watched
from .program import WATCHDOG_SECONDS, Program
from .release import NEWEST

CLONE_NEWNET = 0x4000_0000

# All are in one home, so each has a name of its own.
_numbers = itertools.count(1)


class Sandbox(Program):
    """A running sandbox of the image `host`. One directory of the host is inside as well, at the same place."""

    generation = NEWEST

    def __init__(self, directory: Path) -> None:
        self.name = f"conformance-{next(_numbers)}"
        self._home = os.environ["MSB_HOME"]
        self.directory = Path(self._home) / "run" / "sandboxes" / hashlib.sha256(self.name.encode()).hexdigest()[:24]
        self.socket = str(self.directory / "agent.sock")
        command = [carrel(), "run", "--name", self.name, "--mount", f"{directory}:{directory}:rw"]
        command += ["host", "--", "sh", "-c", "echo up; exec sleep infinity"]
        super().__init__(command, "up", CARREL_HOME=self._home)

    def look(self) -> None:
        self.incarnation = (self.directory / "incarnation").read_text()
        self._agent = self._outside(1)
        # Known by a handle, so that its end can be waited for.
        self._supervisor = os.pidfd_open(int(status(self._agent)["PPid"]))

    def stop(self) -> None:
        """Ends its command, and with it the sandbox, of which nothing may be left."""
        try:
            assert self.end() == 128 + signal.SIGTERM, self.process.returncode
            supervisor = select.poll()
            supervisor.register(self._supervisor, select.POLLIN)
            assert supervisor.poll(WATCHDOG_SECONDS * 1000), "its supervisor goes on"
        finally:
            os.close(self._supervisor)
        left = [str(path) for path in (self.directory, *self.cgroups()) if path.exists()]
        left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if self._home in line]
        assert not left, f"left behind: {left}"

    async def ended(self) -> int:
        """Waits for an end that somebody else asked for, and returns the status of the command."""
        self.may_end = True
        await Watched(self.pid).ended()
        return self.process.wait()

    def cgroups(self) -> list[Path]:
        """Its cgroups, of which a host of the first version has one in each hierarchy."""
        root = Path("/sys/fs/cgroup")
        return [*root.glob(f"carrel/{self.incarnation}"), *root.glob(f"*/carrel/{self.incarnation}")]

    def watch(self, pid: int) -> Watched:
        """A process that the sandbox calls by this number."""
        return Watched(self._outside(pid))

    def bound_socket(self) -> socket.socket:
        """A socket on a port of its own, in the network of the commands: it stays there, wherever it is used."""
        made: list[socket.socket] = []

        def make() -> None:
            # Only this thread enters, and it does not come back.
            with open(f"/proc/{self._agent}/ns/net") as network:
                assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) == 0, ctypes.get_errno()
            made.append(bound_socket())

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    def _outside(self, pid: int) -> int:
        """The number that the host gave to a process of the sandbox."""
        for number in (self.cgroups()[0] / "cgroup.procs").read_text().split():
            # Another one may end while we look.
            if status(int(number)).get("NSpid", "").split()[-1:] == [str(pid)]:
                return int(number)
        raise AssertionError(f"the sandbox {self.name} has no process {pid}")


def carrel() -> str:
    """The command line under test, by default the one beside the agentd."""
    return os.environ.get("CARREL_BIN") or str(Path(os.environ["CARREL_AGENTD"]).parent / "carrel")


def status(pid: int) -> dict[str, str]:
    """What the kernel tells of a process; nothing of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
