"""`tests/skips.toml`: the known skips, each with a reason and the place where the test runs."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .outcome import Ledger, Status


class BadSkips(Exception):
    """`skips.toml` is invalid."""


@dataclass(frozen=True)
class Skip:
    """One entry. A `*` in the name matches any text."""

    name: str
    reason: str
    runs_in: str

    def covers(self, name: str) -> bool:
        return re.fullmatch(re.escape(self.name).replace(r"\*", ".*"), name) is not None


@dataclass(frozen=True)
class Skips:
    """All entries."""

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
        """The place where a skipped test runs, if it is listed."""
        return next((skip.runs_in for skip in self.listed if skip.covers(name)), None)

    def unlisted(self, ledger: Ledger) -> list[str]:
        """The skipped tests that are not listed."""
        return [name for name in ledger.named(Status.SKIPPED) if self.runs_in(name) is None]

    def unknown(self, ledger: Ledger) -> list[str]:
        """The entries that match no test of this run, because the test was renamed or removed."""
        names = [outcome.name for outcome in ledger.outcomes]
        return [skip.name for skip in self.listed if not any(skip.covers(name) for name in names)]
