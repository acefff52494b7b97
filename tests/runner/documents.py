"""Checks the documents: links and names of source files exist, and commands work.

`./test` runs every fenced block `sh run` from the root of the repository.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
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
    """The lines outside fenced blocks, with their numbers."""
    fence = ""
    for at, line in enumerate(text.splitlines(), start=1):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
        elif match and match[1].startswith(fence) and not match[2]:
            fence = ""
        elif not fence:
            yield at, line


def anchors(document: Path) -> set[str]:
    """The anchors of the headings of a document."""
    titles = [line.lstrip("#").strip() for _, line in _prose(document.read_text()) if re.match(r"#+ ", line)]
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def broken_links(document: Path, root: Path) -> list[str]:
    """The broken relative links of a document."""
    wrong = []
    for number, line in _prose(document.read_text()):
        for target in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            path = target.split("#")[0]
            if path and "://" not in path and not path.startswith("mailto:"):
                if not (document.parent / path).exists():
                    wrong.append(f"{document.relative_to(root)}:{number}: broken link: {target}")
                    continue
            page = document.parent / path if path else document
            if "#" in target and "://" not in target and page.suffix == ".md" and target.split("#")[1] not in anchors(page):
                wrong.append(f"{document.relative_to(root)}:{number}: no such heading: {target}")
    return wrong


_SOURCE = re.compile(r"[\w.{},*-]+(?:/[\w.{},*-]+)*\.(?:rs|py|toml|proto|sh|ts)|[\w.{},*-]+(?:/[\w.{},*-]+)+/?")
_BRACES = re.compile(r"\{([^{}]*)\}")


def missing_sources(document: Path, root: Path) -> list[str]:
    """The source files that a document names and that do not exist.

    A name is relative to the root, to `crates/`, to the document, or to the package or the directory of a name before it in
    the same section. One without a directory may be anywhere in that package.
    """
    wrong, near = [], set[Path]()
    for number, line in _prose(document.read_text()):
        if line.startswith("#"):
            near = {document.parent, document.parent / "src"} - {root, root / "src"}
        for name in re.findall(r"`([^`]*)`", line):
            if not _SOURCE.fullmatch(name) or Path(name).stem.isupper():
                continue
            for path in _expanded(name):
                bases = [root, root / "crates", *near]
                found = [match for base in bases for match in base.glob(path)]
                if not found and "/" not in path:
                    found = [match for base in near for match in base.rglob(path)]
                if not found:
                    wrong.append(f"{document.relative_to(root)}:{number}: no such file: {path}")
                near |= {base for match in found for base in (match.parent, match.with_suffix(""), *_package(match, root))}
    return wrong


def _package(path: Path, root: Path) -> list[Path]:
    """The package that a file belongs to."""
    parts = path.relative_to(root).parts
    return [root.joinpath(*parts[:2])] if len(parts) > 2 and parts[0] in ("crates", "tests", "sdk") else []


def _expanded(name: str) -> list[str]:
    """`a/{b,c}` as `a/b` and `a/c`."""
    if not (braces := _BRACES.search(name)):
        return [name.rstrip("/")]
    parts = (name[: braces.start()] + part + name[braces.end() :] for part in braces[1].split(","))
    return [path for part in parts for path in _expanded(part)]


_NAMED = re.compile(
    r"^[^#\n]*?\b(?:carrel\"? (?:create|run)\b[^#\n]*? --(?:id|name|keep-changes)|sessions create) ([A-Za-z0-9_-]+)", re.M
)


def names(text: str) -> set[str]:
    """The names of sandboxes, changes and sessions in the commands of a document."""
    commands = [block.text for block in blocks(text) if block.info.split()[:1] == ["sh"]]
    return {name for command in commands for name in _NAMED.findall(command)}


def shared_names(root: Path) -> list[str]:
    """The names that two documents use: commands of a reader who follows both would fail."""
    given = dict[str, Path]()
    wrong = []
    for document in documents(root):
        for name in sorted(names(document.read_text())):
            if name in given:
                wrong.append(f"{document.relative_to(root)}: {name} is also in {given[name].relative_to(root)}")
            given.setdefault(name, document)
    return wrong


def open_shells(root: Path) -> list[str]:
    """The blocks that set traps or variables in the shell into which they are pasted."""
    found = [(document, block) for document in documents(root) for block in blocks(document.read_text())]
    is_open = re.compile(r"^(trap|export) ", re.M)
    return [
        f"{document.relative_to(root)}:{block.number}: not in parentheses: it changes the shell of the reader"
        for document, block in found
        if block.info.split() == ["sh", "run"] and is_open.search(block.text) and not block.text.startswith("(\n")
    ]


def from_sources(root: Path) -> list[str]:
    """The blocks that run programs of the source tree: a reader has only `carrel` and `sandbox-agent` on `PATH`."""
    found = [(document, block) for document in documents(root) for block in blocks(document.read_text())]
    from_tree = re.compile(r"^[^#\n]*(?:\bscripts/|\btarget/|\bcargo (?:build|run)\b)|\"\$(?:carrel|agents)\"", re.M)
    return [
        f"{document.relative_to(root)}:{block.number}: needs a clone of the repository"
        for document, block in found
        if block.info.split() == ["sh", "run"] and from_tree.search(block.text)
    ]


def command(block: Block, mark: str, programs: Path) -> list[str]:
    """The command for a block, with a variable in its environment and a directory of programs first on `PATH`."""
    path = f"PATH={programs}:{os.environ['PATH']}"
    return ["env", mark, path, "bash", "-euo", "pipefail", "-c", block.text]


def left_behind(mark: str, timeout: float = 30) -> list[str]:
    """The processes with the variable of a block in their environment that do not exit on their own."""
    found, until = [], time.monotonic() + timeout
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdigit() or mark.encode() not in (process / "environ").read_bytes().split(b"\0"):
                continue
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if not _ends(int(process.name), until):
                found.append(f"process {process.name} is still running: {command}")
        except OSError:
            # It has exited, or belongs to another user.
            continue
    return found


def _ends(process: int, until: float) -> bool:
    handle = os.pidfd_open(process)
    try:
        return bool(select.select([handle], [], [], max(0, until - time.monotonic()))[0])
    finally:
        os.close(handle)


# What fits into one sitting.
MAX_LINES = {"README.md": 150, "SPECIFICATION.md": 80}
MAX_BYTES = {"ARCHITECTURE.md": 20_000}


def too_long(root: Path) -> list[str]:
    """The documents that are longer than their limit."""
    wrong = []
    for limits, unit, measure in ((MAX_LINES, "lines", lambda text: len(text.splitlines())), (MAX_BYTES, "bytes", len)):
        for name, limit in limits.items():
            if (size := measure((root / name).read_bytes())) > limit:
                wrong.append(f"{name} has {size:,} {unit}; at most {limit:,}")
    return wrong


def documents(root: Path) -> list[Path]:
    """The documents in the root and below `docs/`."""
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
