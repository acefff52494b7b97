"""Checks the dependencies against `deny.toml`: bans, licences and sources, from the output of `cargo metadata`.

    python3 scripts/deny.py

cargo-deny itself cannot be installed without compiling it. This script reads the part of its format that our `deny.toml`
uses. An unknown key is an error, so that no line is silently ignored.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

KNOWN = {
    "graph": {"targets", "all-features"},
    "licenses": {"allow", "exceptions", "unused-allowed-license"},
    "bans": {"multiple-versions", "wildcards", "allow-wildcard-paths", "deny", "skip"},
    "sources": {"unknown-registry", "unknown-git"},
}

Note = Callable[[str], None]


# === licences ===


def licence_allowed(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be satisfied with these licences alone."""
    words = re.findall(r"\(|\)|[^\s()/]+|/", expression)
    value, rest = _either(words, allowed)
    if rest:
        raise ValueError(f"not a licence expression: {expression}")
    return value


def _either(words: list[str], allowed: set[str]) -> tuple[bool, list[str]]:
    value, words = _both(words, allowed)
    # Before cargo required SPDX, crates wrote `OR` as a slash.
    while words and words[0] in ("OR", "/"):
        other, words = _both(words[1:], allowed)
        value = value or other
    return value, words


def _both(words: list[str], allowed: set[str]) -> tuple[bool, list[str]]:
    value, words = _one(words, allowed)
    while words and words[0] == "AND":
        other, words = _one(words[1:], allowed)
        value = value and other
    return value, words


def _one(words: list[str], allowed: set[str]) -> tuple[bool, list[str]]:
    if not words:
        raise ValueError("a licence expression ends too early")
    if words[0] == "(":
        value, words = _either(words[1:], allowed)
        if not words or words[0] != ")":
            raise ValueError("a parenthesis in a licence expression is not closed")
        return value, words[1:]
    if words[1:2] == ["WITH"]:
        return " ".join(words[:3]) in allowed, words[3:]
    return words[0] in allowed, words[1:]


def licences(table: dict[str, Any], packages: list[dict[str, Any]]) -> list[str]:
    wrong = []
    exceptions = {entry["crate"]: set(entry["allow"]) for entry in table.get("exceptions", [])}
    for package in packages:
        allowed = set(table["allow"]) | exceptions.get(package["name"], set())
        expression = package["license"]
        try:
            if not expression or not licence_allowed(expression, allowed):
                wrong.append(f"{_named(package)}: licence {expression or 'unknown'} is not allowed")
        except ValueError as error:
            wrong.append(f"{_named(package)}: {error}")
    return wrong


# === bans ===


def bans(table: dict[str, Any], metadata: dict[str, Any], note: Note) -> list[str]:
    wrong = []
    by_id = {package["id"]: package for package in metadata["packages"]}
    users: dict[str, set[str]] = {}
    for node in metadata["resolve"]["nodes"]:
        for dependency in node["deps"]:
            users.setdefault(by_id[dependency["pkg"]]["name"], set()).add(by_id[node["id"]]["name"])
    for ban in table.get("deny", []):
        present = any(package["name"] == ban["crate"] for package in by_id.values())
        others = users.get(ban["crate"], set()) - set(ban.get("wrappers", []))
        if present and (others or not ban.get("wrappers")):
            wrong.append(f"{ban['crate']} is banned ({ban['reason']}), and used by {', '.join(sorted(others)) or 'us'}")
    if table.get("wildcards") == "deny":
        members = set(metadata["workspace_members"])
        for package in by_id.values():
            for dependency in package["dependencies"] if package["id"] in members else ():
                if dependency["req"] == "*" and not dependency.get("path"):
                    wrong.append(f"{package['name']}: {dependency['name']} has a wildcard version; specify one")
    several: dict[str, list[str]] = {}
    for package in by_id.values():
        several.setdefault(package["name"], []).append(package["version"])
    skipped = {entry["crate"] for entry in table.get("skip", [])}
    for name, versions in sorted(several.items()):
        if len(versions) > 1 and name not in skipped:
            text = f"{name} is present in {len(versions)} versions: {', '.join(sorted(versions))}"
            wrong.append(text) if table.get("multiple-versions") == "deny" else note(text)
    return wrong


# === sources ===


def sources(table: dict[str, Any], packages: list[dict[str, Any]], root: Path) -> list[str]:
    wrong = []
    registries = Counter(package["source"] for package in packages if str(package["source"]).startswith("registry+"))
    # The registry of nearly all packages; a package from another one was added by hand.
    usual = registries.most_common(1)[0][0] if registries else None
    for package in packages:
        source = package["source"]
        if source is None:
            if not Path(package["manifest_path"]).is_relative_to(root):
                wrong.append(f"{_named(package)}: is outside the repository")
        elif source.startswith("git+") and table["unknown-git"] == "deny":
            wrong.append(f"{_named(package)}: comes from a git repository")
        elif source != usual and table["unknown-registry"] == "deny":
            wrong.append(f"{_named(package)}: does not come from the registry")
    return wrong


# === all of it ===


def _named(package: dict[str, Any]) -> str:
    return f"{package['name']} {package['version']}"


def unknown_keys(rules: dict[str, Any]) -> list[str]:
    """The keys of `deny.toml` that this script does not support."""
    return [
        f"deny.toml: {table}.{key} is not supported by scripts/deny.py"
        for table, content in rules.items()
        for key in content
        if key not in KNOWN.get(table, set())
    ]


def metadata(root: Path, manifest: Path, rules: dict[str, Any]) -> dict[str, Any]:
    """The dependencies that cargo resolves for our targets. `--locked` also fails if `Cargo.lock` is not current."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", str(manifest)]
    if rules["graph"].get("all-features"):
        command.append("--all-features")
    for target in rules["graph"]["targets"]:
        command += ["--filter-platform", target]
    done = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check(root: Path, note: Note) -> list[str]:
    """All problems in all workspaces of the repository."""
    rules = tomllib.loads((root / "deny.toml").read_text())
    wrong = unknown_keys(rules)
    for manifest in (root / "Cargo.toml", root / "benchmarks" / "Cargo.toml"):
        if not manifest.is_file():
            continue
        place = "" if manifest.parent == root else f" (in {manifest.parent.name})"
        try:
            resolved = metadata(root, manifest, rules)
        except RuntimeError as error:
            wrong.append(f"{error}{place}")
            continue
        found = bans(rules["bans"], resolved, lambda text: note(text + place))
        found += licences(rules["licenses"], resolved["packages"])
        found += sources(rules["sources"], resolved["packages"], root)
        wrong += [problem + place for problem in found]
    return wrong


def main() -> int:
    wrong = check(Path(__file__).resolve().parent.parent, lambda text: print(f"note: {text}"))
    for problem in wrong:
        print(f"error: {problem}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
