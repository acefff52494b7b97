"""Which outcomes belong to the test below a mark, and what they say about it."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .agents import AGENTS
from .outcome import Outcome, Status

# The stages of `./test --full` alone: what they showed is in the records.
LATE = ("vm", "fresh")


@dataclass
class Evidence:
    """How the tests of this run ended, and what records say about those that it did not run."""

    root: Path
    outcomes: Iterable[Outcome]
    # The tests that passed in a record, and which record that is.
    recorded: Mapping[str, str] = field(default_factory=dict)
    is_listed: Callable[[str], bool] = lambda name: False
    # What stands on a record or was skipped, with the marks or clauses concerned.
    notes: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run: dict[str, set[Status]] = {}
        for outcome in self.outcomes:
            self.run.setdefault(outcome.name, set()).add(outcome.status)
        # With the second part, such as the release of a machine: the runner's own tests of a stage begin with its name too.
        run_here = {tuple(name.split("::")[:2]) for name in self.run}
        late = {name for name in self.recorded if name.split("::")[0] in LATE}
        left_out = {name for name in late if tuple(name.split("::")[:2]) not in run_here}
        self.by_end: dict[str, list[str]] = {}
        for name in {*self.run, *left_out}:
            self.by_end.setdefault(_end(name), []).append(name)

    def proves(self, path: Path, test: str) -> bool:
        """Whether the test of this name in a file passed, everywhere that it was run."""
        # Suites of agents report their tests without `test_`.
        found = [name for end in {test, test.removeprefix("test_")} for name in self.by_end.get(end, [])]
        return self._passed([name for name in found if belongs(self.root, path, name)], f"{path}: {test}")

    def passed(self, check: str) -> bool:
        """Whether an outcome of exactly this name is there and passed."""
        return self._passed([name for name in self.by_end.get(_end(check), []) if name == check], check)

    def _passed(self, names: list[str], what: str) -> bool:
        ended = {name: self.run[name] for name in names if name in self.run}
        if not ended:
            return self._recorded(names, what)
        statuses = set[Status]().union(*ended.values())
        skipped = [name for name, how in ended.items() if Status.SKIPPED in how]
        if Status.FAILED in statuses or not all(self.is_listed(name) for name in skipped):
            return False
        if Status.PASSED not in statuses and not self._recorded(skipped, what):
            self.notes.setdefault("marks above tests that were skipped, as tests/skips.toml lists", []).append(what)
        return True

    def _recorded(self, names: list[str], what: str) -> bool:
        records = sorted({self.recorded[name] for name in names if name in self.recorded})
        if records:
            self.notes.setdefault(f"marks that stand on {', '.join(records)}", []).append(what)
        return bool(records)


def _end(name: str) -> str:
    """The last part of a name, without the parameters of pytest."""
    return re.sub(r"\[.*", "", name, flags=re.DOTALL).split("::")[-1]


# === names ===


def belongs(root: Path, path: Path, name: str) -> bool:
    """Whether a name is that of a test in this file: its package and its module have to be the same."""
    match path.suffix:
        case ".rs":
            return _belongs_rust(root, path, name.split("::"))
        case ".ts":
            return name.startswith(f"typescript::{path.name.removesuffix('.test.ts')}::")
    parts = path.with_suffix("").parts
    if parts[:2] == ("tests", "conformance"):
        suite, *module = parts[2:]
        return bool(re.match(rf"{suite}/[^:]+::{re.escape('::'.join(module))}::", name))
    if parts[:3] == ("tests", "agents", "suite"):
        agent = parts[3] if parts[3] in AGENTS else ""
        return name.startswith(f"agents::{agent}::" if agent else "agents::")
    return name.startswith("::".join(parts[1:]) + "::")


def _belongs_rust(root: Path, path: Path, name: list[str]) -> bool:
    package, crate = _package(root, path)
    inside = path.relative_to(crate)
    head, *modules = name[:-1] or [""]
    if head == package:
        return inside.parts[0] == "src" and _is_in(modules, inside, Path("src/main.rs"))
    if head == "vm":
        # vm::RELEASE::TARGET::modules::test
        release, target, modules = (*modules, "", "")[0], (*modules, "", "")[1], modules[2:]
        places = (f"{target}.rs", f"{target}/main.rs", f"tests/{target}.rs", f"tests/{target}/main.rs")
        mains = [Path(place) for place in places if release and (root / crate / place).is_file()]
    else:
        mains = [Path(head.removeprefix(f"{package}/"))] if head.startswith(f"{package}/") else []
    return any(_is_in(modules, inside, main) for main in mains)


def _is_in(modules: list[str], inside: Path, main: Path) -> bool:
    """Whether a path of modules leads to a file, from the first file of its crate."""
    if inside == main:
        return True
    if not inside.is_relative_to(main.parent):
        return False
    file = list(inside.relative_to(main.parent).with_suffix("").parts)
    if file[-1] in ("mod", "lib", "main"):
        file.pop()
    return modules[: len(file)] == file


@functools.cache
def _package(root: Path, path: Path) -> tuple[str, Path]:
    """The name of the package of a file, and its directory."""
    for directory in path.parents:
        manifest = root / directory / "Cargo.toml"
        if manifest.is_file() and (package := tomllib.loads(manifest.read_text()).get("package")):
            return package["name"], directory
    return "", path.parent
