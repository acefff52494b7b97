"""Runs the test binaries of the workspace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from artefacts import Artefact

from . import libtest
from .outcome import Ledger, Outcome, Status
from .process import Finished, Watchdog
from .skips import Skips

# A test with this in its name is a fuzz target: its limit is a time, that of other tests a number of cases.
FUZZ = "fuzz_"


@dataclass(frozen=True)
class Bounds:
    """The limits of a run for each kind of test."""

    cases: int
    fuzz_seconds: int
    limit_seconds: float

    def limit(self, fuzz_targets: int) -> float:
        """The time limit of one binary, if its fuzz targets run one after the other."""
        return self.limit_seconds + fuzz_targets * (self.fuzz_seconds + 30)


def prefix(artefact: Artefact) -> str:
    """The prefix of test names: the package, and for integration tests the file."""
    if artefact.kind != "test":
        return artefact.package
    source = artefact.source
    if source.is_relative_to(artefact.directory):
        source = source.relative_to(artefact.directory)
    return f"{artefact.package}/{source}"


@dataclass
class RustTests:
    """Runs test binaries and records their outcomes."""

    ledger: Ledger
    watchdog: Watchdog
    bounds: Bounds
    skips: Skips
    full: bool

    def run(self, artefact: Artefact) -> None:
        """Runs all tests of a binary: ordinary tests, fuzz targets, and with `--full` the ignored tests that are listed."""
        before = len(self.ledger.outcomes)
        listing = self._start(artefact, ["--list", "--format", "terse"], {}, 60.0)
        if not listing.ok:
            self._failed(prefix(artefact), f"--list: {listing.how()}", listing)
            return
        names = libtest.parse_list(listing.output)
        fuzz = [name for name in names if FUZZ in name]
        late = self._late(artefact, names)
        cases = {"BOLERO_RANDOM_ITERATIONS": str(self.bounds.cases)}
        if len(fuzz) < len(names):
            self._group(artefact, ["--skip", FUZZ], cases, self.bounds.limit(0), late)
        if fuzz:
            time = {"BOLERO_RANDOM_TEST_TIME_MS": str(self.bounds.fuzz_seconds * 1000)}
            self._group(artefact, [FUZZ], time, self.bounds.limit(len(fuzz)), late)
        if late:
            self._group(artefact, ["--ignored", "--exact", *late], cases, self.bounds.limit(0), [])
        reported = self.ledger.outcomes[before:]
        broken = any(outcome.status is Status.FAILED for outcome in reported)
        if len(reported) < len(names) and not broken:
            self._failed(prefix(artefact), f"{len(names)} tests are listed, {len(reported)} were reported", listing)
        if names:
            seconds = sum(outcome.seconds or 0.0 for outcome in reported)
            print(f"  {len(reported):5} tests  {seconds:7.1f} s  {prefix(artefact)}", flush=True)

    def _late(self, artefact: Artefact, names: list[str]) -> list[str]:
        """The ignored tests that `skips.toml` lists for this run."""
        if not self.full:
            return []
        return [name for name in names if self.skips.runs_in(f"{prefix(artefact)}::{name}") == "full"]

    def _group(
        self, artefact: Artefact, arguments: list[str], env: dict[str, str], limit: float, late: list[str]
    ) -> None:
        done = self._start(
            artefact, [*arguments, libtest.SHOW_OUTPUT, *libtest.JSON_ARGUMENTS], {**env, **libtest.JSON_ENV}, limit
        )
        if libtest.json_refused(done.code, done.errors):
            done = self._start(artefact, [*arguments, libtest.SHOW_OUTPUT], env, limit)
            suite = libtest.parse_plain(done.output)
        else:
            suite = libtest.parse_json(done.output)
        failed = False
        for outcome in suite.outcomes:
            if outcome.status is Status.SKIPPED and outcome.name in late:
                continue
            name = f"{prefix(artefact)}::{outcome.name}"
            failed |= outcome.status is Status.FAILED
            self.ledger.add(Outcome(name, outcome.status, outcome.seconds, outcome.detail))
        for name in suite.unfinished:
            self._failed(f"{prefix(artefact)}::{name}", f"unfinished: {done.how()}", done)
        if not suite.unfinished and (done.timed_out or not suite.complete or (done.code != 0 and not failed)):
            self._failed(prefix(artefact), done.how(), done)
        for process in done.left_behind:
            self.ledger.note(f"{prefix(artefact)} left a process running, which was killed: {process}")

    def _failed(self, name: str, what: str, done: Finished) -> None:
        self.ledger.add(Outcome(name, Status.FAILED, done.seconds, f"{what}\n{done.errors}"))

    def _start(self, artefact: Artefact, arguments: list[str], env: dict[str, str], limit: float) -> Finished:
        # The same variables and directory as with `cargo test`.
        own = {
            "CARGO_MANIFEST_DIR": str(artefact.directory),
            "CARGO_PKG_NAME": artefact.package,
            "CARGO_PKG_VERSION": artefact.version,
        }
        command = [str(artefact.executable), *arguments]
        return self.watchdog.run(command, cwd=artefact.directory, env={**own, **env}, limit=limit)


def documentation_tests(ledger: Ledger, watchdog: Watchdog, root: Path, limit: float) -> None:
    """Runs documentation tests. Their harness would print JSON only after a full rebuild."""
    command = ["cargo", "test", "--workspace", "--doc", "--locked", "--no-fail-fast"]
    done = watchdog.run(command, cwd=root, limit=limit, env={"CARGO_TERM_COLOR": "never"}, capture_errors=False)
    suite = libtest.parse_plain(done.output)
    failed = False
    for outcome in suite.outcomes:
        failed |= outcome.status is Status.FAILED
        ledger.add(Outcome(f"doc::{outcome.name}", outcome.status, None, outcome.detail))
    if not failed and not (done.ok and suite.complete):
        ledger.add(Outcome("doc", Status.FAILED, done.seconds, f"{done.how()}\n{done.output}"))
    print(f"  {len(suite.outcomes):5} tests  {done.seconds:7.1f} s  documentation", flush=True)


def test_environment(agentd: Path, guest: Path, carrel: Path, full: bool) -> None:
    """Exports the variables that tests rely on. The shim and the examples are in the directory of the agent."""
    os.environ["CARREL_AGENTD"] = str(agentd)
    os.environ["CARREL_BIN"] = str(carrel)
    os.environ["CARREL_AGENTD_GUEST"] = str(guest)
    os.environ["INSTA_UPDATE"] = "no"
    if full:
        os.environ["CARREL_FULL"] = "1"
    else:
        os.environ.pop("CARREL_FULL", None)
