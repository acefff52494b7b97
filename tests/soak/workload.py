"""Random steps, invariants that are checked after them, and counts."""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from .home import CommandFailed, Home

MOST = 6
MIB = 1 << 20


@dataclass
class Expected:
    """The expected lines of the log that one sandbox writes."""

    acknowledged: list[str] = field(default_factory=list)
    # Written by commands whose outcome is unknown.
    possible: set[str] = field(default_factory=set)

    def check(self, sandbox: str, lines: list[str]) -> None:
        assert len(lines) == len(set(lines)), f"{sandbox}: something ran twice: {lines}"
        lost = [line for line in self.acknowledged if line not in lines]
        assert not lost, f"{sandbox}: {len(lost)} of {len(self.acknowledged)} synced lines are lost: {lost[:5]}"
        strange = set(lines) - set(self.acknowledged) - self.possible
        assert not strange, f"{sandbox}: unexpected lines: {strange}"


@dataclass
class Workload:
    """One soak."""

    home: Home
    random: random.Random
    # The share of sandboxes with a sized disk: a sparse image, which is damaged if another process fills the host's disk.
    sized: float
    expected: dict[str, Expected] = field(default_factory=dict)
    made: int = 0
    written: int = 0
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    STEPS = (
        ("create", 6), ("write", 30), ("read", 10), ("stop", 4), ("resume", 6), ("remove", 3),
        ("kill_daemon", 4), ("restart_daemon", 2), ("freeze_daemon", 2), ("reload_daemon", 1),
        ("kill_shim", 3), ("kill_agent", 3), ("freeze_shim", 2), ("fill_disk", 1), ("restore_backup", 1),
    )

    def run(self, seconds: float) -> None:
        names, weights = zip(*self.STEPS, strict=True)
        until = time.monotonic() + seconds
        self.create()
        # Each step at least once, however short it is; then at random.
        for name in self.random.sample(names, len(names)):
            self.step(name)
        while time.monotonic() < until:
            self.step(self.random.choices(names, weights)[0])
        self.finish()

    def step(self, name: str) -> None:
        getattr(self, name)()
        self.counts[name] += 1

    # === work ===

    def create(self) -> None:
        if len(self.expected) >= MOST:
            return self.remove()
        self.made += 1
        name = f"soak-{self.made}"
        disk = ["--disk", "24M"] if self.random.random() < self.sized else []
        self.home.call("create", "--id", name, "--label", "soak=1", *disk, "host")
        self.expected[name] = Expected()

    def write(self) -> None:
        if not (name := self.any("ready")):
            return
        self.written += 1
        line = f"line-{self.written}"
        script = f"cd /workspace && echo {line} >>log && sync log"
        done = self.home.run("exec", name, "--", "sh", "-c", script)
        if done.returncode == 0:
            self.expected[name].acknowledged.append(line)
        else:
            self.expected[name].possible.add(line)
            self.counts["writes that failed"] += 1

    def read(self) -> None:
        if name := self.any("ready"):
            self.verify(name)

    def verify(self, name: str) -> None:
        output = self.home.call("exec", name, "--", "sh", "-c", "cat /workspace/log 2>/dev/null || true")
        self.expected[name].check(name, output.splitlines())

    def stop(self) -> None:
        if name := self.any("ready"):
            self.home.call("stop", name)

    def resume(self) -> None:
        if name := self.any("stopped"):
            self.home.call("resume", name)
            self.verify(name)

    def remove(self) -> None:
        if name := self.any("ready", "stopped", "failed"):
            self.home.call("rm", "--force", name)
            del self.expected[name]

    # === faults ===

    def kill_daemon(self) -> None:
        self.home.stop_daemon(signal.SIGKILL)
        self.home.start()

    def restart_daemon(self) -> None:
        self.home.stop_daemon(signal.SIGTERM)
        self.home.start()

    def freeze_daemon(self) -> None:
        self.freeze(self.home.daemon.pid)

    def reload_daemon(self) -> None:
        self.home.daemon.send_signal(signal.SIGHUP)
        self.home.call("ls")

    def kill_shim(self) -> None:
        self.kill_process("shim_pid")

    def kill_agent(self) -> None:
        self.kill_process("pid")

    def kill_process(self, key: str) -> None:
        if not (name := self.any("ready")):
            return
        os.kill(self.home.sandboxes()[name][key], signal.SIGKILL)
        state = self.home.wait_for_state(name, {"stopped", "failed"})
        assert state == "stopped", f"{name}: after the kill of {key} it is {state}"

    def freeze_shim(self) -> None:
        if name := self.any("ready"):
            self.freeze(self.home.sandboxes()[name]["shim_pid"])

    def freeze(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        # A client that connects meanwhile waits, and is served afterwards.
        try:
            self.home.run("ls", limit=0.5)
        except TimeoutError:
            pass
        except Exception as error:
            if type(error).__name__ != "TimeoutExpired":
                raise
        finally:
            os.kill(pid, signal.SIGCONT)
        self.home.call("ls")

    def fill_disk(self) -> None:
        """Fills the disk of the home: stop and remove work, and what needs space is refused."""
        names = [name for name, state in self.states().items() if state in ("ready", "stopped")]
        ballast = self.home.disk / "ballast"
        with ballast.open("wb") as file:
            try:
                while True:
                    file.write(bytes(MIB))
                    file.flush()
            except OSError:
                pass
        try:
            try:
                self.home.call("create", "--id", f"full-{self.made}-{self.written}", "host")
                raise AssertionError("a sandbox was created on a full disk")
            except CommandFailed:
                pass
            ready = [name for name in names if self.states().get(name) == "ready"]
            if ready:
                self.home.call("stop", self.random.choice(ready))
            if len(names) > 1:
                name = self.random.choice(names)
                self.home.call("rm", "--force", name)
                del self.expected[name]
        finally:
            ballast.unlink()
        for name, found in self.home.sandboxes().items():
            if found.get("pause_reason"):
                self.home.call("resume", name)

    def restore_backup(self) -> None:
        """Restores a backup: disks of sandboxes created since are orphans, and nothing on them is lost."""
        backup = self.home.directory / "backup"
        self.home.call("store", "backup", "--force", str(backup))
        before = set(self.expected)
        for _ in range(4):
            self.step(self.random.choice(("create", "write", "write", "stop", "remove")))
        self.home.stop_daemon(self.random.choice((signal.SIGTERM, signal.SIGKILL)))
        self.home.call("store", "restore", str(backup))
        # The copies that each restore keeps would fill a disk of this size.
        for kept in (self.home.home / "store").glob("*.before-restore-*"):
            kept.unlink()
        self.home.start()
        orphans = [json.loads(line) for line in self.home.call("--json", "store", "orphans").splitlines()]
        since = set(self.expected) - before
        assert {orphan["sandbox"] for orphan in orphans} == since, f"{orphans} instead of {since}"
        for name in since:
            self.home.call("store", "adopt", name)
        # A sandbox that was removed since the backup is in the store again, without its disk.
        for name in before - set(self.expected):
            self.home.wait_for_state(name, {"stopped", "failed"})
            self.home.call("rm", "--force", name)
        for name in self.expected:
            self.home.wait_for_state(name, {"ready", "stopped"})

    # === invariants ===

    def states(self) -> dict[str, str]:
        return {name: found["state"] for name, found in self.home.sandboxes().items()}

    def any(self, *states: str) -> str | None:
        """A random sandbox in one of several states."""
        found = self.states()
        unknown = set(self.expected) - set(found)
        assert not unknown, f"the daemon does not know {unknown}"
        names = sorted(name for name in self.expected if found[name] in states)
        return self.random.choice(names) if names else None

    def finish(self) -> None:
        """Verifies every sandbox, removes all, and looks for leftovers."""
        for name, state in self.states().items():
            if state != "ready":
                self.home.call("resume", name)
            self.verify(name)
            self.home.call("rm", "--force", name)
        self.home.stop_daemon(signal.SIGTERM)
        self.home.call("store", "check")
        for directory in ("disks", "services", "manifests", "quarantine", "run/sandboxes"):
            left = sorted(path.name for path in (self.home.home / directory).glob("*"))
            assert not left, f"{directory} is not empty: {left}"
        assert not (left := processes(self.home.home)), f"processes are left: {left}"


def processes(home: Path) -> list[str]:
    """Processes that have a file of a home open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [os.readlink(link) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(file.startswith(str(home)) for file in files):
            found.append(process.name)
    return found
