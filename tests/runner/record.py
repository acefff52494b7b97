"""The records of full runs: what was run, on what, and how each test ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environment

from .outcome import Ledger, Outcome

PATH = Path("tests") / "records" / "full.json"
# The machines have one of their own: what no other stage can show is not to wait for a run of all of them.
MACHINES = Path("tests") / "records" / "vm.json"
# So has the soak: half an hour of faults, with what was counted.
SOAK = Path("tests") / "records" / "soak.json"


def write(root: Path, ledger: Ledger) -> Path:
    """Writes the record of this run over the last one; the history is git's to keep."""
    stages = {stage: round(seconds, 1) for stage, seconds in ledger.stages}
    return _write(root / PATH, root, {"summary": ledger.summary(), "stages": stages}, ledger.outcomes)


def write_machines(root: Path, outcomes: list[Outcome], kernels: dict[str, str]) -> Path:
    """Writes what the machines showed, and on which kernels."""
    return _write(root / MACHINES, root, {"kernels": kernels, "summary": Ledger(outcomes).summary()}, outcomes)


def write_soak(root: Path, outcome: Outcome, counted: dict[str, Any]) -> Path:
    """Writes what a soak did, and how it ended."""
    return _write(root / SOAK, root, {"soak": counted, "summary": Ledger([outcome]).summary()}, [outcome])


def _write(path: Path, root: Path, what: dict[str, Any], outcomes: list[Outcome]) -> Path:
    tests = {outcome.name: outcome.status.value for outcome in sorted(outcomes, key=lambda o: o.name)}
    content = {**environment.gather(root), **what, "tests": tests}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def passed(root: Path) -> dict[str, str]:
    """The tests that the records saw pass, and which record that is. A record of another history counts for nothing."""
    found = dict[str, str]()
    for path in (PATH, MACHINES, SOAK):
        if (root / path).is_file():
            content = json.loads((root / path).read_text())
            if environment.is_earlier(root, content["commit"]):
                name = f"{path} of {content['commit'][:12]}"
                found |= {test: name for test, status in content["tests"].items() if status == "passed"}
    return found


def stale(root: Path) -> Iterator[str]:
    """Says so when the code has changed since a record was written."""
    for path, command in (
        (PATH, "./test --full"), (MACHINES, "./test --full --only vm"), (SOAK, "./test --full --only soak"),
    ):
        if not (root / path).is_file():
            yield f"{path} does not exist yet: `{command}` writes it"
            continue
        commit = json.loads((root / path).read_text())["commit"]
        if environment.changed_since(root, commit, ["crates", "tests", ":!tests/records"]):
            yield f"{path} is older than the code: run `{command}` to renew it"
