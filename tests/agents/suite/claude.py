"""Claude Code: the shared scenarios, plan approval, and one process per session."""

from __future__ import annotations

import base64
import json
import os
import signal
from typing import Any

from .case import choose, once, refuse
from .scenarios import Scenarios
from .server import Setup


# A PDF of one empty page.
DOCUMENT = b"""%PDF-1.4
1 0 obj
<< /Type /Catalog /Pages 2 0 R >>
endobj
2 0 obj
<< /Type /Pages /Kids [3 0 R] /Count 1 >>
endobj
3 0 obj
<< /Type /Page /Parent 2 0 R /MediaBox [0 0 100 100] >>
endobj
xref
0 4
0000000000 65535 f\x20
0000000009 00000 n\x20
0000000058 00000 n\x20
0000000115 00000 n\x20
trailer << /Size 4 /Root 1 0 R >>
startxref
186
%%EOF
"""


class Claude(Scenarios):
    agent = "claude"

    def rules(self) -> list[str]:
        settings = [*self.scratch.home.glob(".claude/settings*.json"), *self.scratch.workspace.glob(".claude/*")]
        return [str(file) for file in settings if "touch" in file.read_text()]

    def view(self, path: str) -> str:
        return f"[[read:{path}]]"

    def assert_picture(self, part: dict[str, Any], path: str) -> None:
        self.assertEqual((part["source"]["type"], part["source"]["encoding"]), ("data", "base64"))
        self.assertEqual(part["mime_type"], "image/png")
        self.assertTrue(base64.b64decode(part["source"]["data"], validate=True).startswith(b"\x89PNG"))
        self.assertIn(part["source"]["data"], self.asked_model()[-1].text())

    def native_id(self, raw: dict[str, Any]) -> str | None:
        return raw.get("session_id")

    #= agents.modes-capabilities.files-images-parts
    #= agents.universal-schema.parts-text-tool-call
    def test_a_document_that_a_tool_reads_is_a_part(self) -> None:
        path = self.scratch.workspace / "document.pdf"
        path.write_bytes(DOCUMENT)
        turn = self.turn(self.session(permissionMode="bypass"), f"[[read:{path}]][[text:seen]]")
        (message,) = (event for event in turn.events if event.parts("file"))
        self.assertEqual([part["type"] for part in message.data["parts"]], ["tool_result", "file"])
        (document,) = message.parts("file")
        self.assertEqual(document["mime_type"], "application/pdf")
        self.assertEqual(document["source"]["encoding"], "base64")
        self.assertEqual(base64.b64decode(document["source"]["data"]), DOCUMENT)

    # === plans ===

    PLAN = "[[plan:# Plan\n\n1. Touch it.]][[bash:touch planned]][[text:carried out]]"

    #= agents.human-loop.plan-claude-code-question
    def test_an_approved_plan_is_carried_out(self) -> None:
        session = self.session(agentMode="plan")
        self.assertEqual(session.info()["permissionMode"], "plan")
        turn = self.turn(session, self.PLAN, once, choose("approve"))
        (asked,) = turn.of("questionAsked")
        self.assertIn("Touch it.", json.dumps(asked))
        self.assertEqual([option["label"] for option in asked["questions"][0]["options"]], ["approve", "reject"])
        self.assertEqual(turn.said(), ["carried out"])
        self.assertTrue((self.scratch.workspace / "planned").exists())

    #= agents.human-loop.plan-claude-code-question
    def test_a_rejected_plan_is_not_carried_out(self) -> None:
        script = "[[plan:# Plan\n\n1. Touch it.]][[text:I will think again.]]"
        rejected = "The user rejected the plan."
        for name, answer, heard in (
            ("by-label", choose("reject"), rejected),
            ("unanswered", refuse, rejected),
            ("in-words", choose("use tabs"), "use tabs"),
        ):
            with self.subTest(name):
                session = self.session(name, agentMode="plan")
                turn = self.turn(session, script, None, answer)
                self.assertEqual((turn.said(), turn.end["outcome"]), (["I will think again."], "completed"))
                self.assertEqual(session.info()["permissionMode"], "plan")
                self.assert_heard(heard)

    # === processes ===

    #= agents.architecture-components.daemon-manages-agent-processes
    #= agents.execution-models.claude-code-json-lines
    def test_each_session_has_a_process_that_exits_with_it(self) -> None:
        one, two = self.session("one"), self.session("two")
        for session in (one, two):
            self.turn(session, "Hello")
        self.assertEqual(len(self._processes()), 2)
        one.delete()
        self.assertEqual(len(self._processes()), 1)
        self.assertEqual(self.turn(two, "Still there?").said(), ["You said: Still there?"])

    #= agents.lifecycle.process-terminates-session-marked
    #= promises.agents-server.agent-dies
    def test_a_killed_process_is_reported_and_the_session_is_resumed(self) -> None:
        session = self.session()
        self.turn(session, "Remember the word quince")
        native = session.info()["agentSessionId"]
        watch = self.watch(session)
        session.prompt("[[slow:600]]")
        watch.until_kind("itemDelta")
        (process,) = self._processes()
        os.kill(process.pid, signal.SIGKILL)
        error = watch.until_kind("error").data
        self.assertEqual((error["kind"], error["details"]["signal"]), ("process_exit", signal.SIGKILL))
        watch.until_kind("sessionEnded")
        self.assertEqual(session.info()["exit"]["reason"], "exited")
        session.resume()
        self.turn(session, "Which word?")
        self.assert_heard("Remember the word quince")
        self.assertEqual(session.info()["agentSessionId"], native)

    #= agents.besides-document.session-seen-changed-deleted
    def test_a_change_of_mode_takes_effect_at_once(self) -> None:
        session = self.session()
        self.turn(session, "[[bash:touch one]][[text:done]]", once)
        script = f"[[write:{self.path('note.txt')}|quince]][[text:written]]"
        self.assertEqual(session.change(permissionMode="acceptEdits")["permissionMode"], "acceptEdits")
        turn = self.turn(session, script)
        self.assertEqual((turn.of("permissionAsked"), turn.said()), ([], ["written"]))

    #= agents.credentials.claude-code-anthropic-api
    #= agents.credentials.keys-reach-agents-environment
    def test_the_key_of_the_environment_reaches_the_model(self) -> None:
        self.turn(self.session(), "Hello")
        self.assertEqual(self.asked_model()[-1].headers["x-api-key"], "sk-ant-dummy")

    #= agents.credentials.claude-code-anthropic-api
    #= agents.credentials.keys-reach-agents-environment
    def test_a_key_under_its_other_name_reaches_the_model(self) -> None:
        self.restart(Setup({"ANTHROPIC_API_KEY": None, "CLAUDE_API_KEY": "sk-ant-other"}))
        self.turn(self.session(), "Hello")
        self.assertEqual(self.asked_model()[-1].headers["x-api-key"], "sk-ant-other")

    #= agents.credentials.claude-code-anthropic-api
    #= agents.credentials.keys-reach-agents-environment
    def test_a_token_under_either_name_reaches_the_model(self) -> None:
        for name in ("CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN"):
            with self.subTest(name):
                self.restart(Setup({"ANTHROPIC_API_KEY": None, name: f"token-in-{name}"}))
                self.turn(self.session(name), "Hello")
                self.assertEqual(self.asked_model()[-1].headers["authorization"], f"Bearer token-in-{name}")

    #= agents.besides-document.agent-says-done-something
    def test_a_background_task_starts_its_own_turn(self) -> None:
        session = self.session(permissionMode="bypass")
        watch = self.watch(session)
        os.mkfifo(self.scratch.workspace / "go")
        session.prompt(f"[[background:cat {self.path('go')}]][[text:started]]")
        self.follow(session, watch)
        # It finishes only now, when no turn is running.
        (self.scratch.workspace / "go").write_text("over")
        turn = self.follow(session, watch)
        self.assertEqual(len(turn.of("turnStarted")), 2)
        self.assertEqual(session.info()["status"], "idle")

    def _processes(self) -> list[Any]:
        # The command line of each guard contains that of its program.
        return [process for process in self.scratch.processes("--input-format") if process.program == "claude"]


# The base class must not be in the module, or the loader would run it.
del Scenarios
