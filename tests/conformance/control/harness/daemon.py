"""The daemon under test, in its own home, as a new user starts it."""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from . import processes

WATCHDOG_SECONDS = 60.0


class Daemon:
    """`carrel serve`, which can be restarted on the same home. `{base}` in its configuration is its directory."""

    def __init__(self, config: str = "") -> None:
        # Short, because sockets are below it.
        self.base = Path(tempfile.mkdtemp(prefix="carrel-", dir="/tmp"))
        self.home, self.runtime, self.user = (self.base / name for name in ("home", "run", "user"))
        for directory in (self.runtime, self.user, self.base / "config" / "carrel"):
            directory.mkdir(parents=True, mode=0o700)
        (self.base / "config" / "carrel" / "config.toml").write_text(config.replace("{base}", str(self.base)))
        self.socket = self.runtime / "agbox" / "agboxd.sock"
        self.log = self.base / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every program of this home."""
        own = {
            "CARREL_HOME": self.home,
            "HOME": self.user,
            "XDG_RUNTIME_DIR": self.runtime,
            "XDG_CONFIG_HOME": self.base / "config",
        }
        return os.environ | {name: str(path) for name, path in own.items()}

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon does not run"
        return self._process.pid

    @property
    def logs(self) -> str:
        """Its standard error, over all starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self) -> Daemon:
        """Starts it, and returns when it reports that it is ready."""
        with open(self.log, "ab") as log:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log}
            self._process = subprocess.Popen([carrel(), "serve"], env=self.environment, cwd="/", **pipes)
        try:
            self.ready = json.loads(self._first_line())
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """Kills it, like a crash."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """Sends SIGTERM, and returns its exit status."""
        return self._signal(signal.SIGTERM)

    def restart(self) -> None:
        """Kills it, and starts it again."""
        self.kill()
        self.start()

    def wait(self) -> int:
        """Waits until it exits, and returns its exit status."""
        assert self._process is not None, "the daemon does not run"
        status = self._process.wait(timeout=WATCHDOG_SECONDS)
        self._process.stdout.close()
        self._process = None
        return status

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs another `carrel` of the same home to its end."""
        command = [carrel(), *arguments]
        options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": WATCHDOG_SECONDS}
        return subprocess.run(command, env=self.environment, cwd="/", **options)

    def leftovers(self) -> list[str]:
        """What exists of sandboxes: processes, directories, disks, mounts."""
        own = self._process.pid if self._process else 0
        found = [f"process {pid}: {processes.command(pid)}" for pid in processes.using(self.home) if pid != own]
        found += [str(path) for part in ("run/sandboxes", "disks", "services") for path in (self.home / part).glob("*")]
        found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{self.base}/" in line]
        return found

    def cpu_limit(self, sandbox: str) -> float | None:
        """The CPU limit of a sandbox in the cgroup; None is unlimited."""
        directory = self.home / "run" / "sandboxes" / hashlib.sha256(sandbox.encode()).hexdigest()[:24]
        group = f"carrel/{(directory / 'incarnation').read_text()}"
        root = Path("/sys/fs/cgroup")
        # cgroup v2 has one file, v1 has two.
        if files := [*root.glob(f"{group}/cpu.max")]:
            quota, period = files[0].read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        quota, period = (int((root / "cpu" / group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return None if quota < 0 else quota / period

    def close(self) -> None:
        """Kills all processes of this home, and removes it."""
        if self._process is not None:
            self.kill()
        for pid in processes.using(self.base):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.base, ignore_errors=True)

    def _signal(self, number: int) -> int:
        assert self._process is not None, "the daemon does not run"
        self._process.send_signal(number)
        return self.wait()

    def _first_line(self) -> bytes:
        stdout, line = self._process.stdout, b""
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                assert ready.select(WATCHDOG_SECONDS), f"the daemon is not ready:\n{self.logs}"
                byte = os.read(stdout.fileno(), 1)
                assert byte, f"the daemon closed its output after {line!r}:\n{self.logs}"
                line += byte
        return line


def carrel() -> str:
    """The program under test."""
    binary = os.environ.get("CARREL_BIN")
    assert binary, "CARREL_BIN does not name the carrel to test"
    return binary
