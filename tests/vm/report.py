"""Reads what a machine said: suites between marks, each in the words of Rust's test harness.

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
class Said:
    """One suite: its name, how its harness speaks, what it said, and with which code it ended, if it did."""

    name: str
    form: str
    text: str = ""
    code: int | None = None


@dataclass
class Report:
    """All that a machine said."""

    kernel: str | None
    suites: list[Said]
    done: bool

    def outcomes(self, prefix: str) -> Iterator[Outcome]:
        """Every test, and a failure of its own for a suite that did not come to its end."""
        for suite in self.suites:
            read = libtest.parse_json if suite.form == "json" else libtest.parse_plain
            parsed = read(suite.text)
            name = f"{prefix}::{suite.name}"
            for outcome in parsed.outcomes:
                yield Outcome(f"{name}::{outcome.name}", outcome.status, outcome.seconds, outcome.detail)
            for unfinished in parsed.unfinished:
                yield Outcome(f"{name}::{unfinished}", Status.FAILED, None, f"unfinished\n{suite.text}")
            failed = any(outcome.status is Status.FAILED for outcome in parsed.outcomes)
            if not parsed.unfinished and not failed and not (parsed.complete and suite.code == 0):
                yield Outcome(name, Status.FAILED, None, f"ended with {suite.code}\n{suite.text}")


def read(text: str) -> Report:
    """Splits what was said at the marks; lines outside of a suite are ignored."""
    report = Report(None, [], False)
    current: Said | None = None
    for line in text.splitlines():
        match line.split(" "):
            case ["@", "kernel", release]:
                report.kernel = release
            case ["@", "suite", name, form]:
                current = Said(name, form)
                report.suites.append(current)
            case ["@", "end", code] if current:
                current.code, current = int(code), None
            case ["@", "done"]:
                report.done = True
            case _ if current:
                current.text += line + "\n"
    return report
