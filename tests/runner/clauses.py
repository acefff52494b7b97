"""Clauses that Carrel has to hold, the tests that prove them, and the pages that are made from both.

`docs/reference/clauses/*.toml` lists the clauses. A test names those that it proves in comments right above it, so that
it can be renamed and moved:

    //= control.order.sequence-only-rises        in Rust and TypeScript
    #= control.order.sequence-only-rises         in Python

    python3 -m runner.clauses                    (in tests/) writes the pages
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import documents
from .evidence import Evidence

CLAUSES = Path("docs/reference/clauses")
PAGES = {"traceability": Path("docs/reference/traceability.md"), "promises": Path("docs/reference/promises.md")}
SOURCES = ("crates", "tests", "sdk/typescript/test", "benchmarks/src")
NOT_OURS = {"node_modules", "target", "generated", "__pycache__"}
# Their marks are examples.
EXAMPLES = ("clauses.py", "test_clauses.py")

MARK = re.compile(r"^\s*(?://|#)=\s*(\S+)\s*$")
ALMOST_MARK = re.compile(r"^\s*(?:///?!?|##?)\s?=\s")
_BETWEEN = re.compile(r"^\s*(?:#\[|//|#|@|\)|\]|$)|^\s+[^\s].*\)\]$")
_TEST = re.compile(
    r"""^\s*(?:(?:pub(?:\([a-z]+\))?\s)?(?:async\s)?fn\s(?P<rust>\w+)
         |(?:async\s)?def\s(?P<python>\w+)
         |(?:test|it)\(\s*["'`](?P<typescript>.+?)["'`],)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Clause:
    """One sentence that is to hold."""

    id: str
    text: str
    number: str = ""
    note: str = ""
    # What holds it besides tests that name it: files, and outcomes of stages that have no source of their own.
    files: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """Clauses that belong together."""

    title: str
    intro: str
    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Document:
    """The clauses of one document."""

    page: str
    title: str
    intro: str
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Proof:
    """A test that names a clause."""

    clause: str
    path: Path
    line: int
    test: str


# === reading ===


def load(root: Path) -> list[Document]:
    """All documents, in the order that they give themselves."""
    tables = [(path.stem, tomllib.loads(path.read_text())) for path in (root / CLAUSES).glob("*.toml")]
    tables.sort(key=lambda item: item[1]["document"]["order"])
    return [_document(name, table) for name, table in tables]


def _document(name: str, table: dict[str, Any]) -> Document:
    about = table.pop("document")
    sections = []
    for identifier, section in table.items():
        clauses = (_clause(f"{name}.{identifier}.{key}", value) for key, value in section["clauses"].items())
        sections.append(Section(section["title"], section.get("intro", ""), tuple(clauses)))
    return Document(about["page"], about["title"], about.get("intro", ""), tuple(sections))


def _clause(identifier: str, value: str | dict[str, Any]) -> Clause:
    if isinstance(value, str):
        return Clause(identifier, value)
    listed = {key: tuple(entry) if isinstance(entry, list) else entry for key, entry in value.items()}
    return Clause(identifier, **listed)


def proofs(root: Path) -> list[Proof]:
    """Every mark of every source, with the test below it."""
    found = []
    for path in _sources(root):
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            if match := MARK.match(line):
                found.append(Proof(match[1], path.relative_to(root), at + 1, _test_below(lines[at + 1 :])))
    return found


def _sources(root: Path) -> Iterator[Path]:
    for start in SOURCES:
        for directory, below, files in os.walk(root / start):
            below[:] = sorted(set(below) - NOT_OURS)
            sources = sorted(name for name in files if name.endswith((".rs", ".py", ".ts")) and name not in EXAMPLES)
            yield from (Path(directory) / name for name in sources)


def _test_below(lines: list[str]) -> str:
    for line in lines:
        if match := _TEST.match(line):
            return match["rust"] or match["python"] or re.sub(r"\W+", "_", match["typescript"])
        if not _BETWEEN.match(line):
            break
    return ""


# === checks ===


def problems(root: Path, evidence: Evidence | None = None) -> list[str]:
    """What is wrong with clauses, marks and pages; with the evidence of a run also whether the tests passed."""
    listed, marks = load(root), proofs(root)
    clauses = {clause.id: clause for document in listed for section in document.sections for clause in section.clauses}
    proved = {proof.clause for proof in marks}
    wrong = [f"{path.relative_to(root)}:{line}: this is no mark" for path, line in _malformed(root)]
    wrong += [f"{proof.path}:{proof.line}: there is no clause {proof.clause}" for proof in marks if proof.clause not in clauses]
    wrong += [f"{proof.path}:{proof.line}: no test follows the mark" for proof in marks if not proof.test]
    for clause in clauses.values():
        if clause.id not in proved and not clause.files and not clause.checks:
            wrong.append(f"{clause.id}: nothing proves this clause")
        wrong += [f"{clause.id}: {problem}" for name in clause.files for problem in _missing(root, name)]
    for path, text in render(listed, marks).items():
        if not (root / path).is_file() or (root / path).read_text() != text:
            wrong.append(f"{path} is not what the clauses yield: run python3 -m runner.clauses in tests/")
    if evidence is not None:
        proved_here = {(proof.path, proof.test): evidence.proves(proof.path, proof.test) for proof in marks}
        wrong += [
            f"{proof.path}:{proof.line}: {proof.test} did not pass"
            for proof in marks
            if not proved_here[proof.path, proof.test]
        ]
        for clause in clauses.values():
            wrong += [f"{clause.id}: {check} did not pass" for check in clause.checks if not evidence.passed(check)]
    return wrong


def _malformed(root: Path) -> Iterator[tuple[Path, int]]:
    """The lines that look like marks and are none."""
    for path in _sources(root):
        for at, line in enumerate(path.read_text().splitlines(), start=1):
            if ALMOST_MARK.match(line) and not MARK.match(line):
                yield path, at


def _missing(root: Path, name: str) -> Iterator[str]:
    path, _, anchor = name.partition("#")
    if not (root / path).exists():
        yield f"there is no file {path}"
    elif anchor and anchor not in documents.anchors(root / path):
        yield f"there is no heading {name}"


# === pages ===

HEADS = {
    "traceability": "# Traceability\n\nEach clause of the documents that Carrel implements, and the tests that prove it. "
    "[Deviations](deviations.md) has the clauses that Carrel does not hold. The session access document is not implemented. "
    "Carrel has no SDK for the control API: the clauses about SDKs are tested with the published clients and with the CLI.\n",
    "promises": "# Promises\n\nEach limit and property that Carrel promises, and the tests that prove it. "
    "[SPECIFICATION.md](../../SPECIFICATION.md) has the ones that matter most.\n",
}
MADE = "<!-- Made by tests/runner/clauses.py from docs/reference/clauses/ and from the marks in the tests. -->\n"


def render(documents: list[Document], marks: list[Proof]) -> dict[Path, str]:
    """The text of each page."""
    by_clause: dict[str, list[Proof]] = {}
    for proof in marks:
        by_clause.setdefault(proof.clause, []).append(proof)
    texts = {page: [MADE, head] for page, head in HEADS.items()}
    for document in documents:
        texts[document.page].append("\n".join(_render_document(document, by_clause)))
    return {PAGES[page]: "\n".join(parts).rstrip() + "\n" for page, parts in texts.items()}


def _render_document(document: Document, by_clause: dict[str, list[Proof]]) -> Iterator[str]:
    if document.page == "traceability":
        yield f"## {document.title}\n"
    if document.intro:
        yield f"{document.intro}\n"
    for section in document.sections:
        yield f"{'###' if document.page == 'traceability' else '##'} {section.title}\n"
        if section.intro:
            yield f"{section.intro}\n"
        numbers = any(clause.number for clause in section.clauses)
        yield "| clause | number | proved by |" if numbers else "| clause | proved by |"
        yield "|---|---|---|" if numbers else "|---|---|"
        for clause in section.clauses:
            cells = [clause.text, *([clause.number] if numbers else []), _proved_by(clause, by_clause.get(clause.id, []))]
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
        yield ""


def _proved_by(clause: Clause, marks: list[Proof]) -> str:
    tests = sorted({(proof.test, str(proof.path)) for proof in marks})
    words = [f"[{test}](../../{path})" for test, path in tests]
    words += [f"[{name}](../../{name})" for name in clause.files]
    words += [f"`{check}`" for check in clause.checks]
    words += [clause.note] if clause.note else []
    return ", ".join(words)


def main() -> int:
    root = Path(__file__).resolve().parents[2]
    for path, text in render(load(root), proofs(root)).items():
        (root / path).write_text(text)
    wrong = problems(root)
    for problem in wrong:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
