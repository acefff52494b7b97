"""The scenarios of Codex: requests to its app-server, and responses to its own requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .picture import WRITE
from .pipe import Pipe

MODEL = "gpt-5.5"
NEWER_MODEL = "gpt-6.1-sol"
CLIENT = {"name": "carrel", "title": "Carrel", "version": "0"}


def configuration(port: int, model: str = MODEL, key: str = "STANDIN_API_KEY") -> str:
    """A `config.toml` with the stand-in as the provider, whose key is in this variable."""
    return f"""model = "{model}"
model_provider = "standin"

[model_providers.standin]
name = "standin"
base_url = "http://127.0.0.1:{port}/v1"
env_key = "{key}"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1

[analytics]
enabled = false
"""


@dataclass(frozen=True)
class Turn:
    prompt: str
    # One per approval; the last one also for all later approvals.
    decisions: tuple[str, ...] = ("accept",)
    mode: str | None = None
    # Interrupts after this output.
    interrupt: Callable[[dict[str, Any]], bool] | None = None


@dataclass(frozen=True)
class Scenario:
    turns: tuple[Turn, ...]
    model: str = MODEL
    options: dict[str, Any] = field(
        default_factory=lambda: {"approvalPolicy": "never", "sandbox": "danger-full-access"}
    )
    # Sent before the thread is opened.
    before: tuple[str, ...] = ()
    # Resumes the thread in a new process before the last turn.
    resumed: bool = False


ASKING = {"approvalPolicy": "untrusted", "sandbox": "workspace-write"}


def _method(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda message: message.get("method") == name


SCENARIOS = {
    "text": Scenario(
        (Turn("Hello there"), Turn("[[think:Let me see.]][[text:And hello again.]]")), before=("model/list",)
    ),
    "tools": Scenario((Turn("[[text:First I look.]][[bash:echo made; exit 3]][[read:note.txt]][[text:It is done.]]"),)),
    "approve": Scenario(
        (
            Turn("[[bash:touch one]][[text:done]]"),
            Turn("[[bash:touch two]][[text:not done]]", ("decline",)),
            Turn("[[bash:touch three]][[text:never said]]", ("cancel",)),
            Turn("[[bash:touch four]][[bash:touch four]][[text:done twice]]", ("acceptForSession",)),
        ),
        options=ASKING,
    ),
    "patch": Scenario(
        (
            Turn("[[write:note.txt|one\ntwo]][[read:note.txt]][[text:read]]"),
            Turn("[[write:other.txt|three]][[text:not written]]", ("decline",)),
        ),
        options=ASKING,
    ),
    "ask": Scenario((Turn("[[ask:Which colour?|Red|Blue]][[text:noted]]", mode="plan"),)),
    "plan": Scenario((Turn("[[plan:# Plan\n\n1. Do it.]]", mode="plan"), Turn("[[text:carried out]]", mode="default"))),
    "interrupt": Scenario(
        (
            Turn("[[slow:60]]", interrupt=_method("item/agentMessage/delta")),
            Turn("[[bash:touch never]]", interrupt=_method("item/commandExecution/requestApproval")),
            Turn("Still there?"),
        ),
        options=ASKING,
    ),
    "errors": Scenario((Turn("[[error:400]]"), Turn("[[error:500]]"), Turn("Are you back?"))),
    "code_mode": Scenario(
        (
            Turn("[[bash:touch one]][[write:note.txt|one]][[text:done]]"),
            Turn("[[bash:touch two]][[text:not done]]", ("decline",)),
        ),
        NEWER_MODEL,
        ASKING,
    ),
    "picture": Scenario((Turn(f'{WRITE}[[tool:view_image|{{"path": "picture.png"}}]][[text:seen]]'),)),
    "resume": Scenario((Turn("Remember the word quince"), Turn("Which word?")), resumed=True),
}


class Server:
    """One app-server, and the thread that is open on it."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self._asked = 0
        self._call("initialize", {"clientInfo": CLIENT, "capabilities": {"experimentalApi": True}})
        pipe.send({"method": "initialized"})

    def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._asked += 1
        number = self._asked
        self.pipe.send({"id": number, "method": method, "params": parameters})
        answered = self.pipe.until(
            lambda message: message.get("id") == number and "method" not in message, lambda _: None
        )
        if "result" not in answered:
            raise RuntimeError(f"{method}: {answered}")
        return answered["result"]

    def ask(self, method: str) -> None:
        self._call(method, {})

    def open(self, directory: Path, scenario: Scenario) -> str:
        options = {"cwd": str(directory), "model": scenario.model, **scenario.options}
        return self._call("thread/start", options)["thread"]["id"]

    def resume(self, thread: str) -> None:
        self._call("thread/resume", {"threadId": thread, "excludeTurns": True})

    def turn(self, thread: str, turn: Turn, model: str) -> None:
        parameters: dict[str, Any] = {"threadId": thread, "input": [{"type": "text", "text": turn.prompt}]}
        if turn.mode:
            settings = {"model": model, "reasoning_effort": None, "developer_instructions": None}
            parameters["collaborationMode"] = {"mode": turn.mode, "settings": settings}
        started = self._call("turn/start", parameters)["turn"]["id"]
        decisions = list(turn.decisions)
        interrupted = False

        def on(message: dict[str, Any]) -> None:
            nonlocal interrupted
            if turn.interrupt and not interrupted and turn.interrupt(message):
                interrupted = True
                self._asked += 1
                where = {"threadId": thread, "turnId": started}
                self.pipe.send({"id": self._asked, "method": "turn/interrupt", "params": where})
            elif "id" in message and "method" in message and not interrupted:
                self.pipe.send({"id": message["id"], "result": _reply(message, decisions)})

        self.pipe.until(_method("turn/completed"), on)


def _reply(message: dict[str, Any], decisions: list[str]) -> dict[str, Any]:
    if message["method"] == "item/tool/requestUserInput":
        questions = message["params"]["questions"]
        return {"answers": {asked["id"]: {"answers": [asked["options"][0]["label"]]} for asked in questions}}
    return {"decision": decisions.pop(0) if len(decisions) > 1 else decisions[0]}


def record(binary: Path, directory: Path, env: dict[str, str], scenario: Scenario) -> list[str]:
    """Runs a scenario and returns the agent's output."""
    turns, later = (scenario.turns[:-1], scenario.turns[-1:]) if scenario.resumed else (scenario.turns, ())
    command = [str(binary), "app-server"]
    with Pipe(command, directory, env) as pipe:
        server = Server(pipe)
        for method in scenario.before:
            server.ask(method)
        thread = server.open(directory, scenario)
        for turn in turns:
            server.turn(thread, turn, scenario.model)
        pipe.rest()
        lines = pipe.lines
    if later:
        with Pipe(command, directory, env) as pipe:
            server = Server(pipe)
            server.resume(thread)
            server.turn(thread, later[0], scenario.model)
            pipe.rest()
            lines = pipe.lines
    return lines
