"""Codex: the shared scenarios, plans as messages, and one app-server for all sessions."""

from __future__ import annotations

import json
import os
import signal
from typing import Any, ClassVar

from record.codex import NEWER_MODEL

from .case import once
from .client import Session
from .scenarios import Scenarios
from .server import Setup


class Codex(Scenarios):
    agent = "codex"
    # It asks questions only in plan mode.
    asking: ClassVar[dict[str, Any]] = {"agentMode": "plan"}

    def rules(self) -> list[str]:
        files = [*self.scratch.home.glob(".codex/rules/*"), self.scratch.home / ".codex" / "config.toml"]
        return [str(file) for file in files if file.is_file() and "touch" in file.read_text()]

    def view(self, path: str) -> str:
        return f"[[tool:view_image|{json.dumps({'path': path})}]]"

    def assert_picture(self, part: dict[str, Any], path: str) -> None:
        self.assertEqual(part["source"], {"type": "path", "path": path})

    def native_id(self, raw: dict[str, Any]) -> str | None:
        return raw["params"]["thread"]["id"] if raw.get("method") == "thread/started" else None

    # === plans ===

    #= agents.universal-schema.message-parsed-role-parts
    def test_a_plan_is_a_message_and_is_carried_out_after_a_change_of_mode(self) -> None:
        session = self.session(agentMode="plan")
        turn = self.turn(session, "[[plan:# Plan\n\n1. Touch it.]]")
        plans = [
            event.data for event in turn.events if event.kind == "message" and "Touch it." in str(event.data["parts"])
        ]
        (plan,) = (message for message in plans if message["role"] == "assistant")
        self.assertEqual(plan["metadata"]["itemType"], "plan")
        session.change(agentMode="build", permissionMode="default")
        after = self.turn(session, "[[bash:touch planned]][[text:carried out]]", once)
        self.assertEqual(after.said(), ["carried out"])
        self.assertTrue((self.scratch.workspace / "planned").exists())

    # === one server for all ===

    #= agents.execution-models.codex-shared-app-server
    #= promises.agents-server.app-servers-codex
    def test_two_concurrent_sessions_share_one_process(self) -> None:
        one, two = self.session("one"), self.session("two")
        watch = self.watch(one)
        one.prompt("[[bash:touch one]][[text:from one]]")
        asked = watch.until_kind("permissionAsked").data
        # The first one waits for an answer meanwhile.
        turn = self.turn(two, "[[bash:touch two]][[text:from two]]", once)
        self.assertEqual(turn.said(), ["from two"])
        self.assertEqual(len(self._processes()), 1)
        one.permit(asked["id"], "once")
        self.assertEqual(self.follow(one, watch).said(), ["from one"])
        natives = {session.info()["agentSessionId"] for session in (one, two)}
        self.assertEqual(len(natives), 2)

    #= promises.agents-server.agent-dies
    def test_a_crash_of_the_app_server_is_reported_and_sessions_continue_with_another(self) -> None:
        sessions = [self.session("busy"), self.session("idle")]
        for session in sessions:
            self.turn(session, f"Remember the word quince of {session.name}")
        natives = [session.info()["agentSessionId"] for session in sessions]
        watches = [self.watch(session) for session in sessions]
        sessions[0].prompt("[[slow:600]]")
        watches[0].until_kind("itemDelta")
        (process,) = self._processes()
        os.kill(process.pid, signal.SIGKILL)
        for watch in watches:
            error = watch.until_kind("error").data
            self.assertEqual((error["kind"], error["details"]["signal"]), ("server_exit", signal.SIGKILL))
        for session, native in zip(sessions, natives, strict=True):
            self._go_on(session)
            self.assertEqual(self.turn(session, "Which word?").said(), ["You said: Which word?"])
            self.assert_heard(f"Remember the word quince of {session.name}")
            self.assertEqual(session.info()["agentSessionId"], native)
        self.assertEqual(len(self._processes()), 1)

    def test_newer_models_call_tools_from_a_program(self) -> None:
        session = self.session(model=NEWER_MODEL)
        turn = self.turn(session, "[[bash:touch one]][[write:note.txt|quince]][[text:done]]", once)
        self.assertEqual(turn.said(), ["done"])
        self.assertTrue((self.scratch.workspace / "one").exists())
        self.assertEqual((self.scratch.workspace / "note.txt").read_text().strip(), "quince")

    #= agents.credentials.keys-reach-agents-environment
    def test_the_key_of_its_provider_reaches_the_model(self) -> None:
        self.turn(self.session(), "Hello")
        self.assertEqual(self.asked_model()[-1].headers["authorization"], "Bearer dummy")

    #= agents.credentials.codex-openai-api-key
    #= agents.credentials.keys-reach-agents-environment
    def test_a_key_under_either_name_reaches_the_model(self) -> None:
        names = ("OPENAI_API_KEY", "CODEX_API_KEY")
        for given, other in (names, names[::-1]):
            with self.subTest(given):
                self.restart(Setup({given: f"sk-in-{given}", other: None}, codex_key=other))
                self.turn(self.session(given), "Hello")
                self.assertEqual(self.asked_model()[-1].headers["authorization"], f"Bearer sk-in-{given}")

    def _processes(self) -> list[Any]:
        # The command line of the guard contains that of the program.
        return [process for process in self.scratch.processes("app-server") if process.program == "codex"]

    @staticmethod
    def _go_on(session: Session) -> None:
        if session.info()["ended"]:
            session.resume()


# The base class must not be in the module, or the loader would run it.
del Scenarios
