"""A home on its own disk, the daemon that serves it, and the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Longer than any command takes, however slow the machine is.
LIMIT = 120.0
CONFIG = """
[runtime]
idle_ttl = "0"
grace = "5s"
[limits]
sandbox_memory = "96m"
host_free = "48m"
host_free_inodes = 1000
[retention]
deleted_count = 20
execs_count = 50
"""


class CommandFailed(Exception):
    """A command that exited with a code other than 0."""

    def __init__(self, command: list[str], done: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"{' '.join(command)}: {done.returncode}: {done.stderr.strip()}")
        self.code = done.returncode
        self.errors = done.stderr


@dataclass
class Home:
    """Everything of one soak below one directory."""

    directory: Path
    carrel: Path
    daemon: subprocess.Popen[str] | None = None
    logs: int = 0
    env: dict[str, str] = field(default_factory=dict)

    # === the disk ===

    def mount(self, size: int) -> None:
        """Creates a disk that can be filled without filling that of the host."""
        image, self.disk = self.directory / "disk.img", self.directory / "disk"
        with image.open("wb") as file:
            file.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1", str(image)], check=True)
        self.disk.mkdir()
        subprocess.run(["mount", "-o", "loop", str(image), str(self.disk)], check=True)
        for name in ("runtime", "config/carrel"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "config/carrel/config.toml").write_text(CONFIG)
        self.env = {
            **os.environ,
            "CARREL_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.directory / "runtime"),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "CARREL_LIBEXEC": str(self.carrel.parent),
        }

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.disk)], check=True)

    @property
    def home(self) -> Path:
        return self.disk / "home"

    def free(self) -> int:
        found = os.statvfs(self.disk)
        return found.f_bavail * found.f_frsize

    # === the daemon ===

    def start(self) -> None:
        """Starts a daemon, and returns when it serves."""
        self.logs += 1
        with (self.directory / f"daemon.{self.logs}.log").open("w") as log:
            self.daemon = subprocess.Popen(
                [str(self.carrel), "serve"], env=self.env, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.daemon.stdout is not None
        if not self.daemon.stdout.readline():
            log_tail = (self.directory / f"daemon.{self.logs}.log").read_text()[-4000:]
            raise AssertionError(f"the daemon does not serve: {self.daemon.wait()}\n{log_tail}")

    def stop_daemon(self, number: signal.Signals) -> None:
        """Sends the daemon a signal, and returns when it has exited."""
        assert self.daemon is not None
        self.daemon.send_signal(number)
        self.daemon.wait(LIMIT)
        self.daemon = None

    # === the command line ===

    def run(self, *arguments: str, limit: float = LIMIT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.carrel), *arguments], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=limit,
        )

    def call(self, *arguments: str) -> str:
        """Runs a command that has to succeed; returns its output."""
        done = self.run(*arguments)
        if done.returncode != 0:
            raise CommandFailed(list(arguments), done)
        return done.stdout

    def sandboxes(self) -> dict[str, dict[str, Any]]:
        """All persistent sandboxes by their ids."""
        lines = self.call("--json", "ls").splitlines()
        return {found["name"]: found for found in map(json.loads, lines)}

    def wait_for_state(self, sandbox: str, states: set[str]) -> str:
        """Waits for one of several states, by events; returns the state."""
        command = [str(self.carrel), "--json", "events", "--follow", sandbox]
        following = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            state = ""
            os.set_blocking(following.stdout.fileno(), True)
            while state not in states:
                # Events before the subscription are replayed first.
                state = json.loads(self.call("--json", "get", sandbox))["state"]
                if state in states:
                    break
                line = following.stdout.readline()
                if not line:
                    raise AssertionError(f"{sandbox}: no more events: {following.stderr.read()}")
            return state
        finally:
            following.kill()
            following.communicate()
