"""Outcomes of tests and checks, and the ledger that counts them."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field


class Status(enum.Enum):
    """How a test or check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    """One test or check, with the name that documents and `skips.toml` use."""

    name: str
    status: Status
    seconds: float | None = None
    detail: str = ""


@dataclass
class Ledger:
    """All outcomes of a run, the seconds of each stage, and notes."""

    outcomes: list[Outcome] = field(default_factory=list)
    stages: list[tuple[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> Outcome:
        """Records an outcome. A failure is printed at once, with the output of the test."""
        self.outcomes.append(outcome)
        if outcome.status is Status.FAILED:
            print(f"  FAILED {outcome.name}")
            for line in _last_lines(outcome.detail, 120):
                print(f"    {line}")
        sys.stdout.flush()
        return outcome

    def note(self, text: str) -> None:
        """Records a note, which does not fail the run."""
        self.notes.append(text)
        print(f"  note: {text}", flush=True)

    def count(self, status: Status) -> int:
        return sum(outcome.status is status for outcome in self.outcomes)

    def named(self, status: Status) -> list[str]:
        return sorted(outcome.name for outcome in self.outcomes if outcome.status is status)

    def summary(self) -> str:
        """The last line of the output, which other programs parse."""
        return ", ".join(f"{self.count(status)} {status.value}" for status in Status)

    def report(self) -> str:
        """The report at the end of a run; its last line is the summary."""
        lines = ["", "seconds by stage"]
        lines += [f"  {seconds:8.1f}  {stage}" for stage, seconds in self.stages]
        timed = [(outcome.seconds, outcome.name) for outcome in self.outcomes if outcome.seconds is not None]
        lines += ["", "slowest tests"]
        lines += [f"  {seconds:8.3f}  {name}" for seconds, name in sorted(timed, reverse=True)[:20]]
        if self.notes:
            lines += ["", "notes", *(f"  {note}" for note in self.notes)]
        if failed := self.named(Status.FAILED):
            lines += ["", "failed", *(f"  {name}" for name in failed)]
        return "\n".join([*lines, "", self.summary()])


def _last_lines(text: str, count: int) -> list[str]:
    lines = text.rstrip().splitlines()
    if len(lines) <= count:
        return lines
    return [f"[{len(lines) - count} lines above are omitted]", *lines[-count:]]
