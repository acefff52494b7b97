"""Runs the published Python clients against our programs: one pytest run per release, in an environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
import tempfile
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path

from .outcome import Ledger, Outcome, Status
from .process import Finished, Watchdog

# From the newest release to the oldest.
CLIENTS = ("current", "gen7", "gen4", "legacy")
# Those of the control API: the published client, and plain gRPC.
CONTROL_CLIENTS = ("sdk", "plain")


def parse_junit(text: str, client: str, suite: str = "python") -> list[Outcome]:
    """Reads pytest's report. A test is called `SUITE/CLIENT::module::test`."""
    outcomes = []
    for case in xml.fromstring(text).iter("testcase"):
        place = case.get("classname", "").replace(".", "::")
        name = "::".join(part for part in (f"{suite}/{client}", place, case.get("name", "")) if part)
        status, detail = Status.PASSED, ""
        for child in case:
            if child.tag in ("failure", "error"):
                status = Status.FAILED
            elif child.tag == "skipped" and status is Status.PASSED:
                status = Status.SKIPPED
            if child.tag in ("failure", "error", "skipped", "system-out", "system-err"):
                detail += f"{child.get('message', '')}\n{child.text or ''}\n"
        outcomes.append(Outcome(name, status, float(case.get("time", "0")), detail))
    return outcomes


@dataclass(frozen=True)
class ForeignClients:
    """A suite below `tests/conformance`, the clients that it is run with, and where their environments are kept."""

    ledger: Ledger
    watchdog: Watchdog
    suite: Path
    cache: Path
    limit: float
    clients: tuple[str, ...] = CLIENTS

    def run(self) -> None:
        for client in self.clients:
            requirements = self.suite / "requirements" / f"{client}.txt"
            if requirements.is_file():
                self._run_client(client, requirements)
            else:
                missing = f"there is no {requirements}"
                self.ledger.add(Outcome(f"{self.suite.name}/{client}", Status.FAILED, None, missing))

    def _run_client(self, client: str, requirements: Path) -> None:
        python = self._environment(client, requirements)
        if python is None:
            return
        with tempfile.TemporaryDirectory(prefix="carrel-test-") as scratch:
            report = Path(scratch) / "junit.xml"
            command = [str(python), "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--rootdir", str(self.suite)]
            command += ["-o", "faulthandler_timeout=60", "-o", "junit_family=xunit2", f"--junit-xml={report}"]
            command += [str(self.suite)]
            done = self.watchdog.run(command, cwd=self.suite, env={"CARREL_CLIENT": client}, limit=self.limit)
            outcomes = parse_junit(report.read_text(), client, self.suite.name) if report.is_file() else []
        for outcome in outcomes:
            self.ledger.add(outcome)
        if not outcomes or (not done.ok and not any(outcome.status is Status.FAILED for outcome in outcomes)):
            self._failed(client, done.how(), done)
        for process in done.left_behind:
            self.ledger.note(f"{self.suite.name}/{client} left a process running, which was ended: {process}")
        print(f"  {len(outcomes):5} tests  {done.seconds:7.1f} s  {self.suite.name}/{client}", flush=True)

    def _environment(self, client: str, requirements: Path) -> Path | None:
        """A virtual environment with exactly these requirements, made once for each content of the file."""
        key = hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()[:16]
        directory = self.cache / "venvs" / f"{client}-{key}"
        complete = directory / "complete"
        directory.parent.mkdir(parents=True, exist_ok=True)
        with open(directory.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.is_file():
                shutil.rmtree(directory, ignore_errors=True)
                python = directory / "bin" / "python"
                install = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
                # Every version is pinned, and is known to run on the oldest Python that set-up accepts.
                install += ["--ignore-requires-python"]
                for command in (
                    [sys.executable, "-m", "venv", str(directory)],
                    [*install, "--requirement", str(requirements)],
                ):
                    done = self.watchdog.run(command, cwd=self.suite, limit=600.0)
                    if not done.ok:
                        self._failed(client, f"{' '.join(command[1:4])}: {done.how()}", done)
                        return None
                complete.touch()
        return directory / "bin" / "python"

    def _failed(self, client: str, what: str, done: Finished) -> None:
        detail = f"{what}\n{done.output}\n{done.errors}"
        self.ledger.add(Outcome(f"{self.suite.name}/{client}", Status.FAILED, done.seconds, detail))
