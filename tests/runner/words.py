"""The vocabulary: words that have a standard term, and names that say too little."""

from __future__ import annotations

import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .clauses import CLAUSES, MARK, NOT_OURS, PAGES

WORDS = Path("tests/words.toml")
# The directories that are checked.
ROOTS = ("crates", "tests", "benchmarks", "scripts", "packaging", "docs", "sdk", "proto")
SUFFIXES = {".rs", ".py", ".ts", ".md", ".sh", ".toml", ".proto"}
# Scripts in the root have no suffix.
SCRIPTS = ("quickstart", "install", "package", "test", "bench")

# The id of a clause in its table, and the tests that a page names for it.
_CLAUSE = re.compile(r"^[\w-]+ = ")
_PROOF = re.compile(r"\[\w+\]\(\.\./\.\./[^)]*\)")
_TYPE = re.compile(r"^\s*(?:pub(?:\([a-z: ]+\))? )?(?:struct|enum|trait|union) (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Phrase:
    """A phrase that is not used in text."""

    pattern: re.Pattern[str]
    say: str
    unless: re.Pattern[str] | None

    @classmethod
    def read(cls, table: dict[str, str]) -> Phrase:
        # A word may be part of a name: `AskedOnce`, `asked_once`.
        pattern = rf"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?i:{table['pattern']})(?![a-z])"
        unless = re.compile(table["unless"]) if "unless" in table else None
        return cls(re.compile(pattern), table["say"], unless)

    def found_in(self, line: str) -> str | None:
        found = self.pattern.search(line)
        if not found or (self.unless and self.unless.search(line)):
            return None
        return found[0]


def problems(root: Path) -> list[str]:
    """Every use of a phrase or name that the list excludes."""
    table = tomllib.loads((root / WORDS).read_text())
    unchecked = tuple(table["unchecked"]["paths"] + table["unchecked"]["pending"])
    phrases = [Phrase.read(phrase) for phrase in table["phrase"]]
    wrong: list[str] = []
    declared: dict[str, list[str]] = defaultdict(list)
    for path in _sources(root):
        name = str(path.relative_to(root))
        if name.startswith(unchecked):
            continue
        text = path.read_text()
        wrong += _phrases(name, text, phrases)
        if path.suffix == ".rs":
            if {path.stem, path.parent.name} & set(table["modules"]["names"]):
                wrong.append(f"{name}: a module is named by what it holds or does")
            for found in _TYPE.finditer(text):
                declared[found[1]].append(name)
    for kind, files in sorted(declared.items()):
        if kind in table["types"]["names"]:
            wrong += [f"{file}: {kind} is not a noun that says what it is" for file in files]
        elif len(files) > table["types"]["most"]:
            wrong.append(f"{kind} is declared {len(files)} times: {', '.join(sorted(set(files)))}")
    return wrong


def _phrases(name: str, text: str, phrases: list[Phrase]) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        sentence = _without_ids(name, line)
        for phrase in phrases:
            if found := phrase.found_in(sentence):
                yield f"{name}:{number}: `{found}`; say: {phrase.say}"


def _without_ids(name: str, line: str) -> str:
    """A line without ids of clauses and, on the pages made from them, names of tests: they are not sentences."""
    if MARK.match(line):
        return ""
    if Path(name).parent == CLAUSES:
        return _CLAUSE.sub("", line)
    if Path(name) in PAGES.values():
        return _PROOF.sub("", line)
    return line


def _sources(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob("*.md"))
    yield from (path for name in SCRIPTS if (path := root / name).is_file())
    for start in ROOTS:
        for directory, below, files in os.walk(root / start):
            below[:] = sorted(set(below) - NOT_OURS)
            # Units of systemd and scripts of the Debian package have other suffixes, or none.
            ours = (name for name in sorted(files) if start == "packaging" or Path(name).suffix in SUFFIXES)
            yield from (Path(directory) / name for name in ours)
