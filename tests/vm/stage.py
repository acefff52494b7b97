"""The stage `vm` of `./test --full`: one machine for each kernel, its tests under names of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from artefacts import Artefact
from runner.libtest import JSON_ARGUMENTS
from runner.outcome import Ledger, Outcome, Status
from runner.process import Watchdog

from . import machine, report, system

# Debian's releases whose kernels are tried: the oldest that sandboxes run on as they should, and the newest.
KERNELS = ("bookworm", "trixie")
# The one whose kernel and systemd are tried with a reboot and a power cut, and what its boots are called.
REBOOTED = "trixie"
BOOTS = ("first_boot", "after_a_reboot", "after_a_power_cut")
# One is about v1 beside v2, of which these kernels have none. The other sends more than so small a machine has room for;
# `what_waits_in_sockets_counts_as_memory` stands for it.
LEFT_OUT = ("--skip", "every_hierarchy", "--skip", "what_waits_in_sockets_is_limited")
# Package, test binary, and which of its tests: those that limits, freezing, killing and what is left have a part in.
CHOSEN = (
    ("carrel-sandbox", "cgroup", ()),
    ("carrel-tests", "isolation", ("limits::", "kept::", "--include-ignored", *LEFT_OUT)),
    ("carrel-tests", "relay", ("life::",)),
    ("carrel-cli", "e2e", ("flags::", "leftovers::")),
)


@dataclass(frozen=True)
class Machines:
    """The programs under test, and where kernels are kept."""

    ledger: Ledger
    watchdog: Watchdog
    root: Path
    cache: Path
    built: list[Artefact]
    limit: float

    def run(self) -> dict[str, str]:
        """Runs every machine; returns the kernels that came up."""
        found = {suite: self._run_one(suite) for suite in KERNELS}
        self._reboot(REBOOTED)
        return {suite: release for suite, release in found.items() if release}

    def _run_one(self, name: str) -> str | None:
        """Counts what one machine shows, as `vm::NAME::…`."""
        prefix = f"vm::{name}"
        if self._made(prefix, "fetch.sh", name) is None:
            return None
        with tempfile.TemporaryDirectory(prefix="vm-", dir=self.cache) as directory:
            ran = self._start(system.Fetched(self.cache / "vm" / name), Path(directory))
        said = report.read(ran.said)
        count = 0
        for outcome in said.outcomes(prefix):
            self.ledger.add(outcome)
            count += 1
        if not said.done or not ran.how.ok:
            self._failed(prefix, f"the machine did not come to its end: {ran.how.how()}\n{ran.how.errors}{ran.console}")
        print(f"  {count:5} tests  {ran.how.seconds:7.1f} s  {prefix}, Linux {said.kernel}", flush=True)
        return said.kernel

    def _start(self, fetched: system.Fetched, scratch: Path) -> machine.Ran:
        archive = scratch / "archive"
        archive.write_bytes(system.archive(fetched))
        examples = [made.executable for made in self.built if made.kind == "example" and not made.is_test]
        disk = system.disk(fetched, self._programs(), examples, self._suites(), scratch)
        return machine.run(self.watchdog, machine.Machine(fetched.kernel, archive, disk), scratch, self.limit)

    def _reboot(self, name: str) -> None:
        """Boots a Debian with systemd three times: it reboots in order, loses its power, and turns itself off."""
        prefix = f"vm::reboot::{name}"
        debian = self._made(prefix, "systemd.sh", name)
        if debian is None or self._made(prefix, "fetch.sh", name) is None:
            return
        fetched = system.Fetched(self.cache / "vm" / name)
        with tempfile.TemporaryDirectory(prefix="vm-", dir=self.cache) as directory:
            scratch = Path(directory)
            archive = scratch / "archive"
            archive.write_bytes(system.archive(fetched))
            disk = system.systemd_disk(Path(debian), self._programs(), self.root / "packaging", scratch)
            booted = machine.Machine(fetched.kernel, archive, disk, cache="writeback")
            for boot in BOOTS:
                ran = machine.run(self.watchdog, booted, scratch, self.limit)
                said = report.read(ran.said)
                outcomes = list(said.outcomes(prefix))
                for outcome in outcomes:
                    self.ledger.add(outcome)
                print(f"  {len(outcomes):5} tests  {ran.how.seconds:7.1f} s  {prefix}::{boot}", flush=True)
                if [suite.name for suite in said.suites] != [boot] or ran.how.timed_out:
                    self._failed(f"{prefix}::{boot}", f"{ran.how.how()}\n{ran.how.errors}{ran.console}{ran.said}")
                    return

    def _made(self, prefix: str, script: str, name: str) -> str | None:
        """What a script of ours says that it made; none, and a failure, if it did not."""
        command = ["bash", str(self.root / "tests" / "vm" / script), name]
        made = self.watchdog.run(command, cwd=self.root, limit=600.0)
        if made.ok:
            return made.output.strip()
        self._failed(prefix, f"{script} failed: {made.how()}\n{made.errors}")
        return None

    def _programs(self) -> Path:
        """Where the programs were built."""
        agentd = next(made.executable for made in self.built if made.name == "carrel-agentd" and not made.is_test)
        return agentd.parent

    def _suites(self) -> Iterable[system.Suite]:
        for package, name, chosen in CHOSEN:
            made = next(
                made for made in self.built if (made.package, made.name, made.kind) == (package, name, "test")
            )
            # One at a time: without acceleration, two that wait for each other's processor only wait longer.
            arguments = (*chosen, "--test-threads=1", *JSON_ARGUMENTS)
            yield system.Suite(name, made.executable, arguments)

    def _failed(self, name: str, detail: str) -> None:
        self.ledger.add(Outcome(name, Status.FAILED, None, detail))
