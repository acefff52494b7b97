"""A home, a workspace and a temporary directory for one test, and the processes that belong to it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    pid: int
    command: str
    program: str


class Scratch:
    """Everything that a test's agents may touch."""

    def __init__(self) -> None:
        # Not below the temporary directory: Codex makes no helpers in a home that is there.
        self.root = Path(tempfile.mkdtemp(prefix="carrel-agents-", dir="/var/tmp"))
        self.home = self.root / "home"
        self.workspace = self.root / "project"
        self.sessions = self.root / "sessions"
        self.data = self.root / "data"
        self.temporary = self.root / "tmp"
        for directory in (self.home, self.workspace, self.sessions, self.data, self.temporary):
            directory.mkdir()

    def processes(self, word: str = "") -> list[Process]:
        """Whatever runs with this home or in one of these directories, and has this word in its command line."""
        mark = f"HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                ours = mark in (entry / "environ").read_bytes().split(b"\0")
                if ours or Path(os.readlink(entry / "cwd")).is_relative_to(self.root):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    # What has ended and is not yet reaped has no command line.
                    if command and word in command:
                        found.append(Process(int(entry.name), command, Path(os.readlink(entry / "exe")).name))
        return found

    def await_end(self, word: str, seconds: float) -> None:
        """Returns when no such process runs any more."""
        while left := self.processes(word):
            for process in left:
                with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(process.pid)) as ended:
                    if not select.select([ended], [], [], seconds)[0]:
                        raise AssertionError(f"still there after {seconds} s: {process}")

    def close(self) -> None:
        """Ends what is left, by its id, and takes the directories away."""
        while left := self.processes():
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)
