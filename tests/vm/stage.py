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
        return {suite: release for suite, release in found.items() if release}

    def _run_one(self, name: str) -> str | None:
        """Counts what one machine shows, as `vm::NAME::…`."""
        prefix = f"vm::{name}"
        fetch = ["bash", str(self.root / "tests" / "vm" / "fetch.sh"), name]
        fetched = self.watchdog.run(fetch, cwd=self.root, limit=600.0)
        if not fetched.ok:
            self._failed(prefix, f"the kernel was not fetched: {fetched.how()}\n{fetched.errors}")
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
        agentd = next(made.executable for made in self.built if made.name == "carrel-agentd" and not made.is_test)
        examples = [made.executable for made in self.built if made.kind == "example" and not made.is_test]
        disk = system.disk(fetched, agentd.parent, examples, self._suites(), scratch)
        return machine.run(self.watchdog, fetched.kernel, archive, disk, scratch, self.limit)

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
