"""Runs the suites of the published coding agents: the server installs each one, and a stand-in replaces the model."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from .outcome import Ledger, Outcome, Status
from .process import Finished, Watchdog

AGENTS = ("claude", "codex")


def parse_report(text: str, agent: str) -> list[Outcome]:
    """Reads a suite's report, a line of JSON for each test. A test is called `agents::AGENT::test`."""
    outcomes = []
    for line in text.splitlines():
        if line.startswith("{"):
            test = json.loads(line)
            name = f"agents::{agent}::{test['name']}"
            outcomes.append(Outcome(name, Status(test["status"]), test["seconds"], test["detail"]))
    return outcomes


@dataclass(frozen=True)
class PublishedAgents:
    """The suites below `tests/agents/suite`, the server under test, and the directory of the agents."""

    ledger: Ledger
    watchdog: Watchdog
    place: Path
    program: Path
    cache: Path
    limit: float

    def run(self) -> None:
        for agent in AGENTS:
            if self._install(agent):
                self._run_suite(agent)

    def _environment(self) -> dict[str, str]:
        # Kept between runs: an agent is a download of 170 MB.
        return {"SANDBOX_AGENT_BIN": str(self.program), "XDG_DATA_HOME": str(self.cache / "agents")}

    def _install(self, agent: str) -> bool:
        command = [str(self.program), "install-agent", agent]
        done = self.watchdog.run(command, cwd=self.place, env=self._environment(), limit=900.0)
        if not done.ok:
            self._failed(f"agents::{agent}::install", done)
        return done.ok

    def _run_suite(self, agent: str) -> None:
        command = [sys.executable, "-m", "suite", agent]
        done = self.watchdog.run(command, cwd=self.place, env=self._environment(), limit=self.limit)
        outcomes = parse_report(done.output, agent)
        for outcome in outcomes:
            self.ledger.add(outcome)
        if not outcomes or (not done.ok and not any(outcome.status is Status.FAILED for outcome in outcomes)):
            self._failed(f"agents::{agent}", done)
        for process in done.left_behind:
            self.ledger.note(f"agents::{agent} left a process running, which was killed: {process}")
        print(f"  {len(outcomes):5} tests  {done.seconds:7.1f} s  agents/{agent}", flush=True)

    def _failed(self, name: str, done: Finished) -> None:
        detail = f"{done.how()}\n{done.output}\n{done.errors}"
        self.ledger.add(Outcome(name, Status.FAILED, done.seconds, detail))
