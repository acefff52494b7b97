"""Holds the documents to their word: the files they link exist, and their commands work.

A block that begins with three backticks and `sh run` is run by `./test` from the root of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^\s*(```+|~~~+)\s*(.*?)\s*$")


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
