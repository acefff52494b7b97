"""Holds the documents to their word: the tests they name have run, the files they link exist, their commands work.

In the tables of `docs/traceability.md` the last column, and in any table of `SPECIFICATION.md` the column `held by`, says
what holds the line. Each word in backticks there is one of two things:

- with `::` in it, a test: the name under which `./test` reports it, or the end of that name from a `::` or a `/` on.
  `carrel-protocol::frame::tests::a_name`, `frame::tests::a_name`, `exec.rs::a_name`, `python/gen4::test_exec::test_pty`.
  `python::` and `control::` stand for every client, and the `[case]` of a parametrised test may be left out.
- without, a file of the repository, such as `docs/deviations.md` or `./bench`.

A block that begins with three backticks and `sh run` is run by `./test` from the root of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^\s*(```+|~~~+)\s*(.*?)\s*$")


@dataclass(frozen=True)
class Line:
    """A row of a table: where it stands, and the cell that says what holds it."""

    number: int
    cell: str

    def words(self) -> list[str]:
        return _CODE.findall(self.cell)


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    number: int
    info: str
    text: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document."""
    found, fence, number, info, body = [], "", 0, "", list[str]()
    for at, line in enumerate(text.splitlines(), start=1):
        match = _FENCE.match(line)
        if not fence and match:
            fence, number, info, body = match[1], at, match[2], []
        elif fence and match and match[1].startswith(fence) and not match[2]:
            found.append(Block(number, info, "\n".join(body) + "\n"))
            fence = ""
        elif fence:
            body.append(line)
    return found


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines outside fenced blocks."""
    fence = ""
    for at, line in enumerate(text.splitlines(), start=1):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
        elif match and match[1].startswith(fence) and not match[2]:
            fence = ""
        elif not fence:
            yield at, line


def _cells(line: str) -> list[str]:
    row = line.strip().removeprefix("|").removesuffix("|")
    return [cell.replace(r"\|", "|").strip() for cell in re.split(r"(?<!\\)\|", row)]


def held_by(text: str, column: Callable[[list[str]], int | None]) -> list[Line]:
    """The rows of every table for whose heading `column` names a column."""
    lines = list(_prose(text))
    found: list[Line] = []
    chosen: int | None = None
    for (_, line), (number, following) in zip(lines, lines[1:]):
        if not line.lstrip().startswith("|"):
            chosen = None
        if re.fullmatch(r"\|[\s:|-]+\|?", following.strip()) and line.lstrip().startswith("|"):
            chosen = column(_cells(line))
        elif chosen is not None and following.lstrip().startswith("|"):
            cells = _cells(following)
            found.append(Line(number, cells[chosen] if chosen < len(cells) else ""))
    return found


def last_column(heading: list[str]) -> int | None:
    return len(heading) - 1


def held_by_column(heading: list[str]) -> int | None:
    return next((at for at, cell in enumerate(heading) if cell.lower() == "held by"), None)


class TestNames:
    """The names of a run, found by their ends."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_end: dict[str, set[str]] = {}
        for name in names:
            for alias in _aliases(name):
                for end in _ends(alias):
                    self._by_end.setdefault(end, set()).add(name)

    def matching(self, word: str) -> set[str]:
        return self._by_end.get(word, set())


def _aliases(name: str) -> set[str]:
    plain = {name, re.sub(r"\[[^\]]*\]$", "", name)}
    return plain | {re.sub(r"^(python|control)/[^:]+::", r"\1::", alias) for alias in plain}


def _ends(name: str) -> Iterator[str]:
    yield name
    for match in re.finditer(r"::|/", name):
        yield name[match.end() :]


def unheld(document: str, lines: list[Line], names: TestNames, root: Path) -> list[str]:
    """What is wrong with the lines of a document: a test that did not run, a file that is not there, an empty cell."""
    wrong = []
    for line in lines:
        if not line.cell:
            wrong.append(f"{document}:{line.number}: nothing is said to hold this line")
        for word in line.words():
            if "::" in word and not names.matching(word):
                wrong.append(f"{document}:{line.number}: no test that ran is called {word}")
            elif "::" not in word and not (root / word.split("#")[0]).exists():
                wrong.append(f"{document}:{line.number}: neither a test nor a file: {word}")
    return wrong


def broken_links(document: Path, root: Path) -> list[str]:
    """The relative links of a document that lead nowhere."""
    wrong = []
    for number, line in _prose(document.read_text()):
        for target in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            path = target.split("#")[0]
            if path and "://" not in path and not path.startswith("mailto:"):
                if not (document.parent / path).exists():
                    wrong.append(f"{document.relative_to(root)}:{number}: leads nowhere: {target}")
    return wrong


def documents(root: Path) -> list[Path]:
    """The documents a reader meets: those at the root, and all below `docs/`."""
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
