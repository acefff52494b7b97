"""Home, workspace and temporary directory of one test, and its processes."""

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
    """The directories of a test."""

    def __init__(self) -> None:
        # Not below the temporary directory: Codex sets up no helpers in such a home.
        self.root = Path(tempfile.mkdtemp(prefix="carrel-agents-", dir="/var/tmp"))
        self.home = self.root / "home"
        self.workspace = self.root / "project"
        self.sessions = self.root / "sessions"
        self.data = self.root / "data"
        self.temporary = self.root / "tmp"
        for directory in (self.home, self.workspace, self.sessions, self.data, self.temporary):
            directory.mkdir()

    def processes(self, word: str = "") -> list[Process]:
        """Processes with this home or one of these directories whose command line contains this word."""
        mark = f"HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                ours = mark in (entry / "environ").read_bytes().split(b"\0")
                if ours or Path(os.readlink(entry / "cwd")).is_relative_to(self.root):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    # A zombie has no command line.
                    if command and word in command:
                        found.append(Process(int(entry.name), command, Path(os.readlink(entry / "exe")).name))
        return found

    def await_end(self, word: str, seconds: float) -> None:
        """Waits until no such process is running."""
        while left := self.processes(word):
            for process in left:
                with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(process.pid)) as ended:
                    if not select.select([ended], [], [], seconds)[0]:
                        raise AssertionError(f"still running after {seconds} s: {process}")

    def close(self) -> None:
        """Kills remaining processes by id, and removes the directories."""
        while left := self.processes():
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)
