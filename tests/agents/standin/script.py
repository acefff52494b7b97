"""The script in a prompt: `[[bash:ls]][[text:done]]`, cut into the calls that a model makes one after the other."""

from __future__ import annotations

import re
from dataclasses import dataclass

STEP = re.compile(r"\[\[(\w+)(?::(.*?))?\]\]", re.DOTALL)
# What a client puts among the user's messages in its own name: reminders, its environment, a note of an interrupt.
BY_THE_CLIENT = re.compile(r"\s*(<[A-Za-z][\w-]*[ >]|\[Request interrupted|# AGENTS\.md)")
# These are said before the step that follows them, in the same answer; the others end an answer.
SAID = ("think", "text")


@dataclass(frozen=True)
class Step:
    """One thing that the model does: the word before the colon and what is after it."""

    kind: str
    text: str = ""

    def fields(self, count: int) -> list[str]:
        """The text cut at `|` into this many fields; those that are missing are empty."""
        cut = self.text.split("|", count - 1)
        return cut + [""] * (count - len(cut))


@dataclass(frozen=True)
class Call:
    """One answer of the model: what it thinks and says, and the act that ends it, if there is one."""

    said: tuple[Step, ...] = ()
    act: Step | None = None


def calls(prompt: str) -> list[Call]:
    """The answers that a prompt asks for. A prompt that is no script is said back."""
    steps = [Step(kind, text) for kind, text in STEP.findall(prompt)]
    if not steps:
        return [Call((Step("text", f"You said: {prompt.strip()}"),))]
    made: list[Call] = []
    said: list[Step] = []
    for step in steps:
        if step.kind in SAID:
            said.append(step)
        else:
            made.append(Call(tuple(said), step))
            said = []
    if said:
        made.append(Call(tuple(said)))
    return made


def call_at(script: list[Call], index: int) -> Call:
    """The call that is next; a client that goes on after the last one is told that there is nothing left."""
    return script[index] if index < len(script) else Call((Step("text", "Nothing is left to do."),))


def is_prompt(text: str) -> bool:
    """Whether the user wrote this, not the client."""
    return bool(text.strip()) and not BY_THE_CLIENT.match(text)
