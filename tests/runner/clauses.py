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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLAUSES = Path("docs/reference/clauses")
PAGES = {"traceability": Path("docs/reference/traceability.md"), "promises": Path("docs/reference/promises.md")}
SOURCES = ("crates", "tests", "sdk/typescript/test", "benchmarks/src")
NOT_OURS = {"node_modules", "target", "generated", "__pycache__"}
# Its marks are examples.
OWN_TESTS = "test_clauses.py"

MARK = re.compile(r"^\s*(?://|#)=\s*(\S+)\s*$")
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
            sources = sorted(name for name in files if name.endswith((".rs", ".py", ".ts")) and name != OWN_TESTS)
            yield from (Path(directory) / name for name in sources)


def _test_below(lines: list[str]) -> str:
    for line in lines:
        if match := _TEST.match(line):
            return match["rust"] or match["python"] or re.sub(r"\W+", "_", match["typescript"])
        if not _BETWEEN.match(line):
            break
    return ""


# === checks ===


@dataclass
class Names:
    """The tests that passed, found by the last part of their names."""

    names: Iterable[str]
    by_end: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.names:
            self.by_end.setdefault(re.sub(r"\[.*\]$", "", re.split(r"::", name)[-1]), []).append(name)

    def passed(self, proof: Proof) -> bool:
        """Whether the test below a mark passed; of several with one name, those of its file count."""
        # Suites of agents report their tests without `test_`.
        found = [name for end in {proof.test, proof.test.removeprefix("test_")} for name in self.by_end.get(end, [])]
        words = {proof.path.stem, *proof.path.parts[:-1]} - {"src", "tests", "main", "mod", "lib", "crates"}
        near = [name for name in found if words & set(re.split(r"::|/|\.", name.replace("carrel-", "")))]
        return bool(near or (len(found) == 1))


def problems(root: Path, passed: set[str] | None = None) -> list[str]:
    """What is wrong with clauses, marks and pages; with the names of a run also whether the tests passed."""
    documents, marks = load(root), proofs(root)
    clauses = {clause.id: clause for document in documents for section in document.sections for clause in section.clauses}
    proved = {proof.clause for proof in marks}
    wrong = [f"{proof.path}:{proof.line}: there is no clause {proof.clause}" for proof in marks if proof.clause not in clauses]
    wrong += [f"{proof.path}:{proof.line}: no test follows the mark" for proof in marks if not proof.test]
    for clause in clauses.values():
        if clause.id not in proved and not clause.files and not clause.checks:
            wrong.append(f"{clause.id}: nothing proves this clause")
        wrong += [f"{clause.id}: there is no file {name}" for name in clause.files if not (root / name.split("#")[0]).exists()]
    for path, text in render(documents, marks).items():
        if not (root / path).is_file() or (root / path).read_text() != text:
            wrong.append(f"{path} is not what the clauses yield: run python3 -m runner.clauses in tests/")
    if passed is not None:
        names = Names(passed)
        wrong += [f"{proof.path}:{proof.line}: {proof.test} did not pass" for proof in marks if not names.passed(proof)]
        for clause in clauses.values():
            wrong += [f"{clause.id}: {check} did not pass" for check in clause.checks if check not in passed]
    return wrong


# === pages ===

HEADS = {
    "traceability": "# Traceability\n\nEach clause of the documents that Carrel implements, and the tests that prove it.\n",
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
