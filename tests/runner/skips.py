"""`tests/skips.toml`: the skips that are known, each with its reason and where the test does run."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .outcome import Ledger, Status


class BadSkips(Exception):
    """`skips.toml` does not say what it must."""


@dataclass(frozen=True)
class Skip:
    """One line of the list. A `*` in the name stands for anything."""

    name: str
    reason: str
    runs_in: str

    def covers(self, name: str) -> bool:
        return re.fullmatch(re.escape(self.name).replace(r"\*", ".*"), name) is not None


@dataclass(frozen=True)
class Skips:
    """The whole list."""

    listed: tuple[Skip, ...] = ()

    @staticmethod
    def load(path: Path) -> Skips:
        return Skips.parse(path.read_text())

    @staticmethod
    def parse(text: str) -> Skips:
        listed = []
        for entry in tomllib.loads(text).get("skip", []):
            if set(entry) != {"name", "reason", "runs_in"} or not all(str(value).strip() for value in entry.values()):
                raise BadSkips(f"a skip has exactly name, reason and runs_in, and none is empty: {entry}")
            listed.append(Skip(entry["name"], entry["reason"], entry["runs_in"]))
        return Skips(tuple(listed))

    def runs_in(self, name: str) -> str | None:
        """Where a skipped test does run, if it is listed."""
        return next((skip.runs_in for skip in self.listed if skip.covers(name)), None)

    def unlisted(self, ledger: Ledger) -> list[str]:
        """The tests that were skipped without being listed."""
        return [name for name in ledger.named(Status.SKIPPED) if self.runs_in(name) is None]

    def unknown(self, ledger: Ledger) -> list[str]:
        """The lines that name no test of this run, as one does whose test was renamed or removed."""
        names = [outcome.name for outcome in ledger.outcomes]
        return [skip.name for skip in self.listed if not any(skip.covers(name) for name in names)]
