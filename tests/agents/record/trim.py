"""Removes machine-specific data and vendor prose from a recording, and keeps its structure."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

# A longer text is prose; texts of scenarios are shorter.
LONGEST = 160
KEPT = 80
# Long lists of a vendor's products, of which a few entries are kept.
LISTS = {
    "commands",
    "agents",
    "slash_commands",
    "skills",
    "plugins",
    "capabilities",
    "tools",
    "available_output_styles",
}
LIST_LENGTH = 3
# Fields with prose.
PROSE = {"description", "developer_instructions", "argumentHint"}
# Our own values are kept in full.
OURS = ("Run a command", "Choose ", "A task")


def trim(lines: list[str], scratch: Path) -> list[str]:
    """The lines of a recording; a line without removals stays byte for byte."""
    return [_line(_paths(line, scratch)) for line in lines]


def _paths(line: str, scratch: Path) -> str:
    mangled = re.sub(r"[^A-Za-z0-9]", "-", str(scratch))
    for found, put in (
        (f"{scratch}/home", "/home/user"),
        (f"{scratch}/project", "/home/user/project"),
        (f"{scratch}/tmp", "/tmp"),
        (f"{mangled}-project", "-home-user-project"),
    ):
        line = line.replace(found, put)
    line = re.sub(r'"serverName":"[^"]*"', '"serverName":"host"', line)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:4000", line)


def _line(line: str) -> str:
    message = json.loads(line)
    trimmed = _value(message, "")
    if trimmed == message:
        return line
    return json.dumps(trimmed, separators=(",", ":"), ensure_ascii=False)


def _value(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _value(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        kept = value[:LIST_LENGTH] if key in LISTS else value
        return [_value(inner, key) for inner in kept]
    if isinstance(value, str) and not value.startswith("/"):
        if key in PROSE and value and not value.startswith(OURS):
            return "…"
        return f"{value[:KEPT]}…" if len(value) > LONGEST else value
    return value
