"""The script in a prompt: `[[bash:ls]][[text:done]]`, split into the responses of the model."""

from __future__ import annotations

import re
from dataclasses import dataclass

STEP = re.compile(r"\[\[(\w+)(?::(.*?))?\]\]", re.DOTALL)
# What a client adds to the user's messages: reminders, its environment, a note about an interrupt.
BY_THE_CLIENT = re.compile(r"\s*(<[A-Za-z][\w-]*[ >]|\[Request interrupted|# AGENTS\.md)")
# These are sent before the next step, in the same response; the others end a response.
SAID = ("think", "text")


@dataclass(frozen=True)
class Step:
    """A step of the model: the word before the colon, and the text after it."""

    kind: str
    text: str = ""

    def fields(self, count: int) -> list[str]:
        """The text split at `|` into this many fields; missing ones are empty."""
        cut = self.text.split("|", count - 1)
        return cut + [""] * (count - len(cut))


@dataclass(frozen=True)
class Call:
    """A response of the model: reasoning and text, and the act that ends it, if there is one."""

    said: tuple[Step, ...] = ()
    act: Step | None = None


def calls(prompt: str) -> list[Call]:
    """The responses that a prompt scripts. A prompt without a script is echoed."""
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
    """The next response; after the last one, a text that nothing is left."""
    return script[index] if index < len(script) else Call((Step("text", "Nothing is left to do."),))


def is_prompt(text: str) -> bool:
    """Whether this is the user's text and not the client's."""
    return bool(text.strip()) and not BY_THE_CLIENT.match(text)
