"""The scenarios of Claude Code: name, options and prompts."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .picture import WRITE
from .pipe import Pipe

COMMAND = ["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
COMMAND += ["--permission-prompt-tool", "stdio"]
# The response to a request of the agent.
Reply = Callable[[dict[str, Any]], dict[str, Any]]


def allow(request: dict[str, Any]) -> dict[str, Any]:
    return {"behavior": "allow", "updatedInput": request["input"]}


def always(request: dict[str, Any]) -> dict[str, Any]:
    """Allows it for the session: a suggestion for a settings file is kept in memory instead."""
    suggested = [{**rule, "destination": "session"} for rule in request.get("permission_suggestions", [])]
    return {**allow(request), "updatedPermissions": [rule for rule in suggested if rule["type"] == "addRules"]}


def deny(_: dict[str, Any]) -> dict[str, Any]:
    return {"behavior": "deny", "message": "No, thank you."}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    questions = request["input"]["questions"]
    answers = {question["question"]: question["options"][0]["label"] for question in questions}
    return {"behavior": "allow", "updatedInput": {**request["input"], "answers": answers}}


def approve(request: dict[str, Any]) -> dict[str, Any]:
    mode = {"type": "setMode", "mode": "default", "destination": "session"}
    return {**allow(request), "updatedPermissions": [mode]}


@dataclass(frozen=True)
class Turn:
    prompt: str
    # One per request of the agent; the last one also for all later requests.
    replies: tuple[Reply, ...] = (allow,)
    # Interrupts after this output, or after a request.
    interrupt: Callable[[dict[str, Any]], bool] | None = None


@dataclass(frozen=True)
class Scenario:
    turns: tuple[Turn, ...]
    options: tuple[str, ...] = ()
    # Waits for one more turn without a prompt.
    unprompted: int = 0


def _is_delta(message: dict[str, Any]) -> bool:
    return message.get("type") == "stream_event" and message["event"]["type"] == "content_block_delta"


def _is_asked(message: dict[str, Any]) -> bool:
    return message.get("type") == "control_request"


PARTIAL = ("--include-partial-messages",)
SCENARIOS = {
    "text": Scenario((Turn("Hello there"), Turn("[[think:Let me see.]][[text:And hello again.]]"))),
    "partial": Scenario(
        (Turn("[[think:Let me see.]][[text:First I look.]][[bash:echo made]][[text:It is done.]]"),), PARTIAL
    ),
    "bash_permission": Scenario(
        (
            Turn("[[bash:touch one && echo made]][[text:done]]"),
            Turn("[[bash:touch two]][[text:not done]]", (deny,)),
            Turn("[[bash:touch three]][[bash:touch three]][[text:done twice]]", (always,)),
            Turn("[[bash:ls no-such-file]][[text:that failed]]"),
        )
    ),
    "write_read": Scenario(
        (Turn("[[write:{directory}/note.txt|one\ntwo]][[read:{directory}/note.txt]][[text:read]]"),)
    ),
    "ask": Scenario(
        (
            Turn("[[ask:Which colour?|Red|Blue]][[text:noted]]", (answer,)),
            Turn("[[ask:Which size?|S|M]][[text:as you wish]]", (deny,)),
        )
    ),
    "plan": Scenario(
        (
            Turn(
                "[[text:Planning.]][[plan:# Plan\n\n1. Do it.]][[bash:touch planned]][[text:carried out]]",
                (approve, allow),
            ),
        ),
        ("--permission-mode", "plan"),
    ),
    "plan_rejected": Scenario(
        (Turn("[[plan:# Plan\n\n1. Do it.]][[text:I will think again.]]", (deny,)),), ("--permission-mode", "plan")
    ),
    "interrupt": Scenario(
        (
            Turn("[[slow:60]]", interrupt=_is_delta),
            Turn("[[bash:touch never]]", interrupt=_is_asked),
            Turn("Still there?"),
        ),
        PARTIAL,
    ),
    "api_error": Scenario((Turn("[[error:400]]"), Turn("[[error:529]]"), Turn("Are you back?"))),
    "subagent": Scenario((Turn("[[agent:say hello]][[text:it said hello]]"),), ("--forward-subagent-text",)),
    "resume_unknown": Scenario((), ("--resume", "00000000-0000-4000-8000-000000000000")),
    "picture": Scenario((Turn(f"{WRITE}[[read:picture.png]][[text:seen]]"),)),
    "background": Scenario((Turn("[[background:echo behind]][[text:started]]"),), unprompted=1),
}


def record(binary: Path, directory: Path, env: dict[str, str], scenario: Scenario, session: str) -> list[str]:
    """Runs a scenario and returns the agent's output."""
    command = [str(binary), *COMMAND, *scenario.options]
    if "--resume" not in scenario.options:
        command += ["--session-id", session]
    with Pipe(command, directory, env) as pipe:
        pipe.send({"type": "control_request", "request_id": "initialize", "request": {"subtype": "initialize"}})
        with contextlib.suppress(EOFError):
            # An agent with invalid options exits at once.
            pipe.until(lambda message: message["type"] == "control_response", lambda _: None)
        for turn in scenario.turns:
            _turn(pipe, turn, directory)
        for _ in range(scenario.unprompted):
            pipe.until(lambda message: message["type"] == "result", lambda _: None)
        pipe.rest()
        return pipe.lines


def _turn(pipe: Pipe, turn: Turn, directory: Path) -> None:
    prompt = turn.prompt.replace("{directory}", str(directory))
    message = {"role": "user", "content": [{"type": "text", "text": prompt}]}
    pipe.send(
        {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": "", "uuid": str(uuid.uuid4())}
    )
    replies = list(turn.replies)
    interrupted = False

    def on(seen: dict[str, Any]) -> None:
        nonlocal interrupted
        if turn.interrupt and not interrupted and turn.interrupt(seen):
            interrupted = True
            pipe.send({"type": "control_request", "request_id": "interrupt", "request": {"subtype": "interrupt"}})
        elif _is_asked(seen) and not interrupted:
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
            success = {"subtype": "success", "request_id": seen["request_id"], "response": reply(seen["request"])}
            pipe.send({"type": "control_response", "response": success})

    pipe.until(lambda seen: seen["type"] == "result", on)
