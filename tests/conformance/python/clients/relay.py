"""Starts and stops a sandbox, whose relay connects clients to its agentd."""

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
from .processes import WatchedProcess
from .program import WATCHDOG_SECONDS, Program
from .release import NEWEST

CLONE_NEWNET = 0x4000_0000

# All are in one home, so each has its own name.
_numbers = itertools.count(1)


class Sandbox(Program):
    """A running sandbox of the image `host`, with one directory of the host mounted at the same path."""

    generation = NEWEST

    def __init__(self, directory: Path) -> None:
        self.name = f"conformance-{next(_numbers)}"
        self._home = os.environ["MSB_HOME"]
        self.directory = Path(self._home) / "run" / "sandboxes" / hashlib.sha256(self.name.encode()).hexdigest()[:24]
        self.socket = str(self.directory / "agent.sock")
        command = [carrel(), "run", "--name", self.name, "--mount", f"{directory}:{directory}:rw"]
        command += ["host", "--", "sh", "-c", "echo up; exec sleep infinity"]
        super().__init__(command, "up", CARREL_HOME=self._home)

    def on_ready(self) -> None:
        self.incarnation = (self.directory / "incarnation").read_text()
        self._agent = self._host_pid(1)
        # A pidfd, to wait for its exit.
        self._shim = os.pidfd_open(int(status(self._agent)["PPid"]))

    def stop(self) -> None:
        """Terminates its command, and with it the sandbox, and checks that nothing is left."""
        try:
            assert self.terminate() == 128 + signal.SIGTERM, self.process.returncode
            poll = select.poll()
            poll.register(self._shim, select.POLLIN)
            assert poll.poll(WATCHDOG_SECONDS * 1000), "its shim still runs"
        finally:
            os.close(self._shim)
        leftovers = [str(path) for path in (self.directory, *self.cgroups()) if path.exists()]
        leftovers += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if self._home in line]
        assert not leftovers, f"left behind: {leftovers}"

    async def wait(self) -> int:
        """Waits for an exit that the test caused otherwise, and returns the exit status of the command."""
        self.may_exit = True
        await WatchedProcess(self.pid).wait()
        return self.process.wait()

    def cgroups(self) -> list[Path]:
        """Its cgroups: with v1, one in each hierarchy."""
        root = Path("/sys/fs/cgroup")
        return [*root.glob(f"carrel/{self.incarnation}"), *root.glob(f"*/carrel/{self.incarnation}")]

    def watch(self, pid: int) -> WatchedProcess:
        """The process with this pid in the sandbox."""
        return WatchedProcess(self._host_pid(pid))

    def bound_socket(self) -> socket.socket:
        """A socket that is bound to a free port in the network namespace of the sandbox."""
        made: list[socket.socket] = []

        def make() -> None:
            # Only this thread enters the namespace, and then ends.
            with open(f"/proc/{self._agent}/ns/net") as network:
                assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) == 0, ctypes.get_errno()
            made.append(bound_socket())

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    def _host_pid(self, pid: int) -> int:
        """The pid on the host of a process of the sandbox."""
        for number in (self.cgroups()[0] / "cgroup.procs").read_text().split():
            # Other processes may exit meanwhile.
            if status(int(number)).get("NSpid", "").split()[-1:] == [str(pid)]:
                return int(number)
        raise AssertionError(f"the sandbox {self.name} has no process {pid}")


def carrel() -> str:
    """The CLI under test, by default the one beside the agentd."""
    return os.environ.get("CARREL_BIN") or str(Path(os.environ["CARREL_AGENTD"]).parent / "carrel")


def status(pid: int) -> dict[str, str]:
    """The status of a process from procfs; empty if it has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
