"""Generates the table of numbers in `docs/reference/benchmarks.md` from the record of `./bench`.

    python3 scripts/specification.py            writes the table between its two markers
    python3 scripts/specification.py --check    checks that the table matches the record

The record has the output of the benchmark program and the environment:

    {"commit": …, "machine": {…}, "versions": {…},
     "benchmarks": [{"name": "exec of true", "face": "agent client", "value": 0.8, "min": 0.7, "p99": 1.1, "unit": "ms",
                     "anchor": {"name": "bare spawn", "value": 0.5, "min": 0.4, "p99": 0.9},
                     "ratio": 1.6, "aim": "at most 0.5 ms more", "met": true}]}

`min`, `p99`, `anchor`, `ratio`, `aim` and `met` may be null or absent; an anchor's value has the unit of its line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environment

BEGIN = "<!-- numbers:begin -->"
END = "<!-- numbers:end -->"
DOCUMENT = "docs/reference/benchmarks.md"
RECORD = Path("benchmarks") / "records" / "reference.json"
# The numbers depend on these paths. A new record alone does not make them stale.
MEASURED = ["crates", "benchmarks", ":!benchmarks/records"]


def number(value: float) -> str:
    """Formats a number with three significant digits; a benchmark is no more precise."""
    if abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.3g}"


def measured(numbers: dict[str, Any], unit: str) -> str:
    """A number with its unit, and the minimum and the 99th percentile if calls were timed individually."""
    spread = f" ({number(numbers['min'])} to {number(numbers['p99'])})" if numbers.get("p99") is not None else ""
    return f"{number(numbers['value'])} {unit}".rstrip() + spread


def table(record: dict[str, Any]) -> str:
    """The text between the markers."""
    machine, versions = record["machine"], record["versions"]
    at = f"commit `{record['commit'][:12]}`" if record.get("commit") else "the first commit"
    changed = ", with changes not yet committed" if record.get("dirty") and record.get("commit") else ""
    lines = [
        f"Measured at {at}{changed} ({record['date']}) on {machine['cores']} cores of {machine['processor']} with"
        f" {machine['memory_gib']} GiB, {versions['system']}, Linux {versions['kernel']}, {versions['rustc']}."
        f" Written by `./bench` into `{RECORD}`; this table is made from that file.",
        "",
        "| what | face | measured | anchor in the same run | ratio | aim | met |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in record["benchmarks"]:
        anchor = line.get("anchor")
        cells = [
            line["name"],
            line["face"],
            measured(line, line["unit"]),
            f"{anchor['name']}: {measured(anchor, line['unit'])}" if anchor else "–",
            number(line["ratio"]) if line.get("ratio") is not None else "–",
            line.get("aim") or "–",
            {True: "yes", False: "**no**", None: "–"}[line.get("met")],
        ]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)


def with_table(document: str, text: str) -> str:
    """The document with this text between its markers."""
    before, found, rest = document.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{DOCUMENT} has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def check(root: Path, note: Callable[[str], None]) -> list[str]:
    """Reports wrong numbers in the document as errors, and a stale record as a note."""
    path = root / DOCUMENT
    if not path.is_file():
        return [f"{DOCUMENT} is missing"]
    if not (root / RECORD).is_file():
        return [f"{RECORD} is missing: run ./bench"]
    record = json.loads((root / RECORD).read_text())
    try:
        if with_table(path.read_text(), table(record)) != path.read_text():
            return [f"the numbers of {DOCUMENT} do not match {RECORD}: run python3 scripts/specification.py"]
    except ValueError as error:
        return [str(error)]
    for line in record["benchmarks"]:
        if line.get("met") is False:
            note(f"{RECORD}: {line['name']} ({line['face']}) misses its aim: {line.get('aim')}")
    if environment.changed_since(root, record.get("commit"), MEASURED):
        note(f"{RECORD} is older than the code that it measured: run ./bench")
    return []


def write(root: Path) -> None:
    """Writes the table into the document."""
    record = json.loads((root / RECORD).read_text())
    path = root / DOCUMENT
    path.write_text(with_table(path.read_text(), table(record)))


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--check"]:
        wrong = check(root, lambda text: print(f"note: {text}"))
        for problem in wrong:
            print(f"error: {problem}")
        return 1 if wrong else 0
    try:
        write(root)
    except (OSError, ValueError) as error:
        print(f"error: {error}\nhint: ./bench writes the record; {DOCUMENT} must contain both markers", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
