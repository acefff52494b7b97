"""The record of a full run: what was run, on what, and how each test ended."""

from __future__ import annotations

import json
from pathlib import Path

import circumstances

from .outcome import Ledger

PATH = Path("tests") / "records" / "full.json"


def write(root: Path, ledger: Ledger) -> Path:
    """Writes the record of this run over the last one; the history is git's to keep."""
    content = {
        **circumstances.gather(root),
        "summary": ledger.summary(),
        "stages": {stage: round(seconds, 1) for stage, seconds in ledger.stages},
        "tests": {outcome.name: outcome.status.value for outcome in sorted(ledger.outcomes, key=lambda o: o.name)},
    }
    path = root / PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def passed(root: Path) -> set[str]:
    """The tests that the last full run saw pass."""
    path = root / PATH
    if not path.is_file():
        return set()
    return {name for name, status in json.loads(path.read_text())["tests"].items() if status == "passed"}


def stale(root: Path) -> str | None:
    """Says so when the code has changed since the last full run."""
    path = root / PATH
    if not path.is_file():
        return f"{PATH} does not exist yet: `./test --full` writes it"
    commit = json.loads(path.read_text())["commit"]
    if circumstances.changed_since(root, commit, ["crates", "tests", ":!tests/records"]):
        return f"{PATH} is older than the code: run `./test --full` to renew it"
    return None
