"""Runs the tests of the TypeScript client on a copy of its sources, with modules from the cache."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .outcome import Ledger, Outcome, Status
from .process import Finished, Watchdog

# The compiler also checks the tests, and programs that use the package.
PROJECTS = {"build": ".", "tests": "test", "in_a_browser": "test/consumers/browser", "in_node": "test/consumers/node"}
MADE = ("node_modules", "dist", "test-dist")


def parse_junit(text: str, module: str) -> list[Outcome]:
    """Parses the report of Node.js on one file. A test is called `typescript::module::its_name_in_words`."""
    return list(_outcomes(xml.fromstring(text), f"typescript::{module}"))


def _outcomes(parent: xml.Element, place: str) -> Iterator[Outcome]:
    for element in parent:
        name = f"{place}::{re.sub(r'[^0-9A-Za-z]+', '_', element.get('name', '')).strip('_')}"
        if element.tag == "testsuite":
            yield from _outcomes(element, name)
        elif element.tag == "testcase":
            tags = {child.tag for child in element}
            status = Status.FAILED if "failure" in tags else Status.SKIPPED if "skipped" in tags else Status.PASSED
            detail = "\n".join(f"{child.get('message', '')}\n{child.text or ''}" for child in element)
            yield Outcome(name, status, float(element.get("time", "0")), detail)


@dataclass(frozen=True)
class TypeScript:
    """The package, the directory of its modules, and the server for its tests."""

    ledger: Ledger
    watchdog: Watchdog
    package: Path
    cache: Path
    limit: float
    server: Path | None

    def run(self) -> None:
        modules = self._modules()
        if modules is None:
            return
        with tempfile.TemporaryDirectory(prefix="carrel-test-") as scratch:
            copy = Path(scratch) / "package"
            shutil.copytree(self.package, copy, ignore=shutil.ignore_patterns(*MADE))
            (copy / "node_modules").symlink_to(modules, target_is_directory=True)
            if all([self._compile(copy, name, project) for name, project in PROJECTS.items()]):
                for test in sorted((copy / "test-dist").glob("*.test.js")):
                    self._run_file(copy, test, Path(scratch) / "junit.xml")

    def _compile(self, copy: Path, name: str, project: str) -> bool:
        command = ["node", "node_modules/typescript/bin/tsc", "--project", project]
        done = self.watchdog.run(command, cwd=copy, limit=self.limit)
        if done.ok:
            self.ledger.add(Outcome(f"typescript::{name}", Status.PASSED, done.seconds))
        else:
            self._failed(f"typescript::{name}", done)
        return done.ok

    def _run_file(self, copy: Path, test: Path, report: Path) -> None:
        module = test.name.removesuffix(".test.js")
        command = ["node", "--test", "--test-timeout=120000", "--test-reporter=junit"]
        command += [f"--test-reporter-destination={report}", str(test)]
        # If the server is missing, the variable is empty, and the tests fail instead of finding another one.
        env = {"SANDBOX_AGENT_BIN": str(self.server or "")}
        report.unlink(missing_ok=True)
        done = self.watchdog.run(command, cwd=copy, env=env, limit=self.limit)
        try:
            outcomes = parse_junit(report.read_text(), module)
        except (OSError, xml.ParseError):
            outcomes = []
        for outcome in outcomes:
            self.ledger.add(outcome)
        if not outcomes or (not done.ok and not any(outcome.status is Status.FAILED for outcome in outcomes)):
            self._failed(f"typescript::{module}", done)
        for process in done.left_behind:
            self.ledger.note(f"typescript::{module} left a process running, which was killed: {process}")
        print(f"  {len(outcomes):5} tests  {done.seconds:7.1f} s  typescript::{module}", flush=True)

    def _modules(self) -> Path | None:
        """The modules of the lock file, downloaded once for each version of it."""
        named = [self.package / name for name in ("package.json", "package-lock.json", ".npmrc")]
        key = hashlib.sha256(b"\0".join(file.read_bytes() for file in named)).hexdigest()[:16]
        directory = self.cache / "node" / f"sdk-{key}"
        complete = directory / "complete"
        directory.parent.mkdir(parents=True, exist_ok=True)
        with open(directory.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.is_file():
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir()
                for file in named:
                    shutil.copy(file, directory)
                install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
                done = self.watchdog.run([*install, f"--cache={self.cache / 'npm'}"], cwd=directory, limit=600.0)
                if not done.ok:
                    self._failed("typescript::modules", done)
                    return None
                complete.touch()
        return directory / "node_modules"

    def _failed(self, name: str, done: Finished) -> None:
        self.ledger.add(Outcome(name, Status.FAILED, done.seconds, f"{done.how()}\n{done.output}\n{done.errors}"))
