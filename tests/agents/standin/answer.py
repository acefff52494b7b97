"""Responses of the model, independent of the API."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

# One word per delta, so that every text has deltas.
WORD = re.compile(r"\S*\s*", re.DOTALL)
SLOW_PACE = 0.05


@dataclass(frozen=True)
class Thought:
    text: str


@dataclass(frozen=True)
class Text:
    text: str
    # Seconds between two deltas; a slow text can be interrupted.
    pace: float = 0.0


@dataclass(frozen=True)
class ToolCall:
    """A tool call; `arguments` is an object, or a string for tools that take one."""

    name: str
    arguments: dict[str, Any] | str
    namespace: str | None = None


Block = Thought | Text | ToolCall


@dataclass(frozen=True)
class Answer:
    blocks: tuple[Block, ...] = ()
    # With an HTTP status other than 200, the client gets only an error.
    status: int = 200
    stop_sequence: str | None = None
    usage: dict[str, int] = field(default_factory=lambda: {"input": 100, "output": 20})


@dataclass(frozen=True)
class Event:
    """A server-sent event, and the delay before it in seconds."""

    data: dict[str, Any]
    pause: float = 0.0


def deltas(text: str) -> list[str]:
    return [word for word in WORD.findall(text) if word]


def slow_text(seconds: str) -> Text:
    """A text that is streamed for this long; a minute by default."""
    count = max(1, round(float(seconds or 60) / SLOW_PACE))
    return Text("".join(f"{number} " for number in range(1, count + 1)), SLOW_PACE)
