"""Takes out of a recording what is the machine's or a vendor's prose, and leaves its shape."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

# A text longer than this is prose; what a scenario says itself is shorter.
LONGEST = 160
KEPT = 80
# Lists that name everything a vendor ships; a few show what one looks like.
LISTS = {"commands", "agents", "slash_commands", "skills", "plugins", "capabilities", "tools", "available_output_styles"}
LIST_LENGTH = 3
# Fields whose text is written for people.
PROSE = {"description", "developer_instructions", "argumentHint"}
# What is ours is kept in full, wherever it stands.
OURS = ("Run a command", "Choose ", "A task")


def trim(lines: list[str], scratch: Path) -> list[str]:
    """The lines of a recording; one that needs nothing taken out stays as it was written."""
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
