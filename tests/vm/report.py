"""Parses the output of a machine: suites between markers, each with the output of Rust's test harness.

    @ kernel RELEASE
    @ suite NAME json|plain
    …
    @ end CODE
    @ done
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runner import libtest
from runner.outcome import Outcome, Status


@dataclass
class SuiteOutput:
    """One suite: its name, the format and text of its output, and its exit code, if it exited."""

    name: str
    format: str
    text: str = ""
    code: int | None = None


@dataclass
class Report:
    """The parsed output of a machine."""

    kernel: str | None
    suites: list[SuiteOutput]
    done: bool

    def outcomes(self, prefix: str) -> Iterator[Outcome]:
        """Every test, and a failure for each suite that did not finish."""
        for suite in self.suites:
            parse = libtest.parse_json if suite.format == "json" else libtest.parse_plain
            parsed = parse(suite.text)
            name = f"{prefix}::{suite.name}"
            for outcome in parsed.outcomes:
                yield Outcome(f"{name}::{outcome.name}", outcome.status, outcome.seconds, outcome.detail)
            for unfinished in parsed.unfinished:
                yield Outcome(f"{name}::{unfinished}", Status.FAILED, None, f"unfinished\n{suite.text}")
            failed = any(outcome.status is Status.FAILED for outcome in parsed.outcomes)
            if not parsed.unfinished and not failed and not (parsed.complete and suite.code == 0):
                yield Outcome(name, Status.FAILED, None, f"exited with {suite.code}\n{suite.text}")


def read(text: str) -> Report:
    """Splits the output at the markers; lines outside of a suite are ignored."""
    report = Report(None, [], False)
    current: SuiteOutput | None = None
    for line in text.splitlines():
        match line.split(" "):
            case ["@", "kernel", release]:
                report.kernel = release
            case ["@", "suite", name, format]:
                current = SuiteOutput(name, format)
                report.suites.append(current)
            case ["@", "end", code] if current:
                current.code, current = int(code), None
            case ["@", "done"]:
                report.done = True
            case _ if current:
                current.text += line + "\n"
    return report
