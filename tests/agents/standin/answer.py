"""What the model answers, before it is put into the words of either API."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

# A stream of one word a time, so that every text has deltas.
WORD = re.compile(r"\S*\s*", re.DOTALL)
SLOW_PACE = 0.05


@dataclass(frozen=True)
class Thought:
    text: str


@dataclass(frozen=True)
class Text:
    text: str
    # Seconds between two deltas; a slow text is there to be interrupted.
    pace: float = 0.0


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool; `arguments` is an object, or a text for a tool that takes one."""

    name: str
    arguments: dict[str, Any] | str
    namespace: str | None = None


Block = Thought | Text | ToolCall


@dataclass(frozen=True)
class Answer:
    blocks: tuple[Block, ...] = ()
    # A status of HTTP other than 200 is all that the client gets.
    status: int = 200
    stop_sequence: str | None = None
    usage: dict[str, int] = field(default_factory=lambda: {"input": 100, "output": 20})


@dataclass(frozen=True)
class Event:
    """A server-sent event, and the seconds to wait before it is sent."""

    data: dict[str, Any]
    pause: float = 0.0


def deltas(text: str) -> list[str]:
    return [word for word in WORD.findall(text) if word]


def slow_text(seconds: str) -> Text:
    """A text that takes this long to be said: a minute, if nothing is given."""
    count = max(1, round(float(seconds or 60) / SLOW_PACE))
    return Text("".join(f"{number} " for number in range(1, count + 1)), SLOW_PACE)
