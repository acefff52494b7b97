"""Runs `cargo build` and prints the paths of the executables, as cargo reports them.

    python3 scripts/artefacts.py [CARGO BUILD ARGUMENTS…]     prints one `name=path` per binary and example
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class BuildFailed(Exception):
    """Cargo failed; its message is already on standard error."""


@dataclass(frozen=True)
class Artefact:
    """One executable of the workspace."""

    package: str
    version: str
    kind: str
    name: str
    directory: Path
    source: Path
    executable: Path
    is_test: bool


def packages(metadata: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The packages of `cargo metadata`, by id."""
    return {package["id"]: package for package in metadata["packages"]}


def parse_messages(lines: Iterable[str], by_id: dict[str, dict[str, Any]]) -> list[Artefact]:
    """The executables in the JSON messages of a build, without those of other workspaces."""
    found = []
    for line in lines:
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        package = by_id.get(message.get("package_id", ""))
        if message.get("reason") != "compiler-artifact" or not message.get("executable") or package is None:
            continue
        target = message["target"]
        found.append(
            Artefact(
                package=package["name"],
                version=package["version"],
                kind=target["kind"][0],
                name=target["name"],
                directory=Path(package["manifest_path"]).parent,
                source=Path(target["src_path"]),
                executable=Path(message["executable"]),
                is_test=message["profile"]["test"],
            )
        )
    return found


def metadata_command(arguments: list[str]) -> list[str]:
    """The `cargo metadata` command for the workspace of these build arguments."""
    manifest = arguments[(at := arguments.index("--manifest-path")) : at + 2] if "--manifest-path" in arguments else []
    return ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1", *manifest]


def build_command(arguments: list[str]) -> list[str]:
    """The `cargo build` command: JSON on standard output, messages for people on standard error."""
    return ["cargo", "build", "--locked", "--message-format", "json-render-diagnostics", *arguments]


def build(arguments: list[str]) -> list[Artefact]:
    """Runs `cargo build` and returns all executables, including those that were up to date."""
    metadata = _output(metadata_command(arguments))
    messages = _output(build_command(arguments))
    return parse_messages(messages.splitlines(), packages(json.loads(metadata)))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(command[:2])} exited with status {done.returncode}")
    return done.stdout.decode()


def main() -> int:
    try:
        made = build(sys.argv[1:])
    except BuildFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for artefact in made:
        if not artefact.is_test:
            print(f"{artefact.name}={artefact.executable}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
