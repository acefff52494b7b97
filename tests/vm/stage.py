"""The stage `vm` of `./test --full`: one machine for each kernel, with its own test names."""

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

# Debian releases whose kernels are tested: the oldest with full support, and the newest.
KERNELS = ("bookworm", "trixie")
# The release that is tested with systemd, a reboot and a power cut, and the names of its boots.
REBOOTED = "trixie"
BOOTS = ("first_boot", "after_a_reboot", "after_a_power_cut")
# The first needs cgroup v1 beside v2, which these machines do not have. The second sends more than so small a machine can
# buffer; `data_queued_in_sockets_counts_as_memory` replaces it.
LEFT_OUT = ("--skip", "every_hierarchy", "--skip", "data_queued_in_sockets")
# Package, test binary, and a selection of its tests: limits, freezing, killing and clean-up.
CHOSEN = (
    ("carrel-sandbox", "cgroup", ()),
    ("carrel-tests", "isolation", ("limits::", "persistent_disk::", "--include-ignored", *LEFT_OUT)),
    ("carrel-tests", "relay", ("lifecycle::",)),
    ("carrel-cli", "e2e", ("flags::", "leftovers::")),
)


@dataclass(frozen=True)
class Machines:
    """The programs under test, and the cache of kernels."""

    ledger: Ledger
    watchdog: Watchdog
    root: Path
    cache: Path
    built: list[Artefact]
    limit: float

    def run(self) -> dict[str, str]:
        """Runs every machine; returns the kernels that booted."""
        found = {suite: self._run_one(suite) for suite in KERNELS}
        self._reboot(REBOOTED)
        return {suite: release for suite, release in found.items() if release}

    def _run_one(self, name: str) -> str | None:
        """Runs one machine, and records its tests as `vm::NAME::…`."""
        prefix = f"vm::{name}"
        if self._run_script(prefix, "fetch.sh", name) is None:
            return None
        with tempfile.TemporaryDirectory(prefix="vm-", dir=self.cache) as directory:
            ran = self._start(system.Fetched(self.cache / "vm" / name), Path(directory))
        parsed = report.read(ran.output)
        count = 0
        for outcome in parsed.outcomes(prefix):
            self.ledger.add(outcome)
            count += 1
        if not parsed.done or not ran.process.ok:
            self._failed(prefix, f"the machine did not finish: {ran.process.how()}\n{ran.process.errors}{ran.console}")
        print(f"  {count:5} tests  {ran.process.seconds:7.1f} s  {prefix}, Linux {parsed.kernel}", flush=True)
        return parsed.kernel

    def _start(self, fetched: system.Fetched, scratch: Path) -> machine.FinishedMachine:
        archive = scratch / "archive"
        archive.write_bytes(system.archive(fetched))
        examples = [made.executable for made in self.built if made.kind == "example" and not made.is_test]
        disk = system.disk(fetched, self._programs(), examples, self._suites(), scratch)
        return machine.run(self.watchdog, machine.Machine(fetched.kernel, archive, disk), scratch, self.limit)

    def _reboot(self, name: str) -> None:
        """Boots a Debian with systemd three times: it reboots in order, loses power, and powers off."""
        prefix = f"vm::reboot::{name}"
        debian = self._run_script(prefix, "systemd.sh", name)
        if debian is None or self._run_script(prefix, "fetch.sh", name) is None:
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
                parsed = report.read(ran.output)
                outcomes = list(parsed.outcomes(prefix))
                for outcome in outcomes:
                    self.ledger.add(outcome)
                print(f"  {len(outcomes):5} tests  {ran.process.seconds:7.1f} s  {prefix}::{boot}", flush=True)
                if [suite.name for suite in parsed.suites] != [boot] or ran.process.timed_out:
                    self._failed(f"{prefix}::{boot}", f"{ran.process.how()}\n{ran.process.errors}{ran.console}{ran.output}")
                    return

    def _run_script(self, prefix: str, script: str, name: str) -> str | None:
        """The path that a script of ours prints, or None and a recorded failure."""
        command = ["bash", str(self.root / "tests" / "vm" / script), name]
        made = self.watchdog.run(command, cwd=self.root, limit=600.0)
        if made.ok:
            return made.output.strip()
        self._failed(prefix, f"{script} failed: {made.how()}\n{made.errors}")
        return None

    def _programs(self) -> Path:
        """The directory of the built programs."""
        agentd = next(made.executable for made in self.built if made.name == "carrel-agentd" and not made.is_test)
        return agentd.parent

    def _suites(self) -> Iterable[system.Suite]:
        for package, name, chosen in CHOSEN:
            made = next(
                made for made in self.built if (made.package, made.name, made.kind) == (package, name, "test")
            )
            # One at a time: without acceleration, parallel tests only slow each other down.
            arguments = (*chosen, "--test-threads=1", *JSON_ARGUMENTS)
            yield system.Suite(name, made.executable, arguments)

    def _failed(self, name: str, detail: str) -> None:
        self.ledger.add(Outcome(name, Status.FAILED, None, detail))
