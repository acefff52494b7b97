"""Scenarios for every agent."""

from __future__ import annotations

import base64
import os
from datetime import datetime
from typing import Any, ClassVar

from record.picture import PICTURE

from .case import Case, always, choose, once, refuse, reject
from .client import LIMIT

# The versions that the server installs.
VERSIONS = {"claude": "2.1.325", "codex": "0.166.0"}


class Scenarios(Case):
    """The shared scenarios; subclasses define what differs."""

    # Options of a session in which the agent asks questions.
    asking: ClassVar[dict[str, Any]] = {}

    def path(self, name: str) -> str:
        return str(self.scratch.workspace / name)

    # === text and tools ===

    #= agents.schema-pipeline.claude-code-codex-opencode
    #= agents.lifecycle.post-messages-runs-prompt
    #= agents.modes-capabilities.user-messages-events-every-agent
    #= promises.agents-server.published-agents-driven
    def test_a_prompt_is_answered(self) -> None:
        session = self.session()
        turn = self.turn(session, "Hello there")
        self.assertEqual(turn.said("user"), ["Hello there"])
        self.assertEqual(turn.said(), ["You said: Hello there"])
        self.assertEqual(turn.end["outcome"], "completed")
        self.assert_heard("Hello there")
        info = session.info()
        self.assertEqual((info["status"], info["ended"]), ("idle", False))
        self.assertTrue(info["agentSessionId"])

    #= agents.universal-schema.data-message-started-error
    #= agents.universal-schema.universalevent-id-timestamp-session
    #= promises.agents-server.events-session
    def test_both_views_are_numbered_without_gaps_and_agree(self) -> None:
        session = self.session()
        self.turn(session, "[[think:Let me see.]][[text:First I look.]][[bash:echo made]][[text:Done.]]", once)
        default, full = session.events("default"), session.events("full")
        for events in (default, full):
            self.assertEqual([event.id for event in events], list(range(1, len(events) + 1)))
            self.assertEqual({event.whole["sessionId"] for event in events}, {"one"})
            self.assertEqual({event.whole["agent"] for event in events}, {self.agent})
            times = [event.whole["timestamp"] for event in events]
            self.assertEqual(times, sorted(times))
            for time in times:
                # To the millisecond, in UTC.
                self.assertEqual(datetime.strptime(time, "%Y-%m-%dT%H:%M:%S.%fZ").microsecond % 1000, 0, time)
                self.assertEqual(len(time), 24)
        self.assertEqual((default[0].kind, default[0].data["message"]), ("started", "session.created"))
        known = {"message", "started", "error", "questionAsked", "permissionAsked", "raw"}
        self.assertLessEqual({event.kind for event in default}, known)
        messages = [event.data for event in default if event.kind == "message"]
        self.assertEqual([event.data for event in full if event.kind == "message"], messages)

    #= agents.modes-capabilities.agents-stream-codex-deltas
    def test_a_text_is_streamed_in_deltas_and_then_complete(self) -> None:
        turn = self.turn(self.session(), "[[text:One two three four.]]")
        pieces = [delta for delta in turn.of("itemDelta") if delta["kind"] == "message"]
        self.assertGreater(len(pieces), 1)
        self.assertEqual("".join(piece["delta"] for piece in pieces), "One two three four.")
        self.assertEqual(turn.said(), ["One two three four."])
        started = {item["itemId"] for item in turn.of("itemStarted")}
        self.assertEqual({item["itemId"] for item in turn.of("itemCompleted")}, started)

    #= agents.modes-capabilities.agents-stream-codex-deltas
    def test_reasoning_is_an_item_and_not_a_message(self) -> None:
        turn = self.turn(self.session(), "[[think:Let me see.]][[text:Hello.]]")
        thoughts = [item for item in turn.of("itemCompleted") if item["kind"] == "reasoning"]
        self.assertEqual(len(thoughts), 1)
        self.assertEqual(turn.said(), ["Hello."])

    #= agents.modes-capabilities.agents-stream-codex-deltas
    #= promises.agents-server.published-agents-driven
    def test_a_file_is_written_and_read_back(self) -> None:
        script = f"[[write:{self.path('note.txt')}|quince\nmedlar]][[read:{self.path('note.txt')}]][[text:read]]"
        turn = self.turn(self.session(), script, once)
        self.assertEqual((self.scratch.workspace / "note.txt").read_text().split(), ["quince", "medlar"])
        calls, results = turn.calls(), turn.results()
        self.assertEqual([call["id"] for call in calls], [result["id"] for result in results])
        self.assertEqual(len(calls), 2)
        self.assertFalse(any(result.get("is_error") for result in results))
        self.assertIn("medlar", str(results[1]["output"]))
        self.assert_heard("medlar")
        self.assertEqual(turn.said()[-1], "read")

    #= agents.modes-capabilities.files-images-parts
    #= agents.universal-schema.parts-text-tool-call
    def test_a_picture_that_a_tool_reads_is_a_part(self) -> None:
        path = self.scratch.workspace / "picture.png"
        path.write_bytes(base64.b64decode(PICTURE))
        turn = self.turn(self.session(permissionMode="bypass"), f"{self.view(str(path))}[[text:seen]]")
        self.assertEqual(turn.said(), ["seen"])
        (message,) = (event for event in turn.events if event.parts("image"))
        self.assertEqual([part["type"] for part in message.data["parts"]], ["tool_result", "image"])
        (picture,) = message.parts("image")
        self.assert_picture(picture, str(path))

    def test_a_failed_command_is_reported_and_the_turn_continues(self) -> None:
        turn = self.turn(self.session(permissionMode="bypass"), "[[bash:echo lost >&2; exit 3]][[text:that failed]]")
        (result,) = turn.results()
        self.assertTrue(result["is_error"])
        self.assertIn("lost", str(result["output"]))
        self.assertEqual((turn.said(), turn.end["outcome"]), (["that failed"], "completed"))

    # === permissions ===

    #= agents.human-loop.permissions-surface-permissionasked-once
    #= agents.modes-capabilities.questions-permissions-claude-code
    def test_a_permission_granted_once_is_requested_again(self) -> None:
        turn = self.turn(self.session(), "[[bash:touch one]][[bash:touch one]][[text:done]]", once)
        self.assertEqual(len(turn.of("permissionAsked")), 2)
        self.assertEqual([answered["outcome"] for answered in turn.of("permissionResolved")], ["once", "once"])
        asked = turn.of("permissionAsked")[0]
        self.assertEqual(asked["sessionId"], "one")
        self.assertIn("touch one", str(asked["patterns"]))
        self.assertTrue((self.scratch.workspace / "one").exists())

    #= agents.human-loop.permissions-surface-permissionasked-once
    #= promises.agents-server.rules-always-writes-workspace
    def test_a_permission_granted_always_is_not_requested_again_and_not_stored(self) -> None:
        session = self.session()
        first = self.turn(session, "[[bash:touch two]][[text:done]]", always)
        self.assertEqual([answered["outcome"] for answered in first.of("permissionResolved")], ["always"])
        (self.scratch.workspace / "two").unlink()
        second = self.turn(session, "[[bash:touch two]][[text:done twice]]")
        self.assertEqual((second.of("permissionAsked"), second.said()), ([], ["done twice"]))
        self.assertTrue((self.scratch.workspace / "two").exists())
        self.assertEqual([entry.name for entry in self.scratch.workspace.iterdir()], ["two"])
        self.assertEqual(self.rules(), [], "rules that would outlive the session")

    #= agents.human-loop.permissions-surface-permissionasked-once
    def test_a_rejected_permission_prevents_the_command_and_the_turn_continues(self) -> None:
        turn = self.turn(self.session(), "[[bash:touch three]][[text:not done]]", reject)
        self.assertEqual([answered["outcome"] for answered in turn.of("permissionResolved")], ["reject"])
        (result,) = turn.results()
        self.assertTrue(result["is_error"])
        self.assertFalse((self.scratch.workspace / "three").exists())
        self.assertEqual((turn.said(), turn.end["outcome"]), (["not done"], "completed"))

    def test_a_permission_for_a_file_is_rejected_and_then_granted(self) -> None:
        session = self.session()
        script = f"[[write:{self.path('note.txt')}|quince]][[text:over]]"
        refused = self.turn(session, script, reject)
        self.assertIn("note.txt", str(refused.of("permissionAsked")[0]["patterns"]))
        self.assertFalse((self.scratch.workspace / "note.txt").exists())
        self.turn(session, script, once)
        self.assertEqual((self.scratch.workspace / "note.txt").read_text().strip(), "quince")

    #= agents.execution-models.model-permission-mode-plan
    #= agents.modes-capabilities.permission-modes-default-plan
    def test_with_bypass_no_permission_is_requested(self) -> None:
        turn = self.turn(self.session(permissionMode="bypass"), "[[bash:touch four]][[text:done]]")
        self.assertEqual((turn.of("permissionAsked"), turn.said()), ([], ["done"]))
        self.assertTrue((self.scratch.workspace / "four").exists())

    # === questions ===

    #= agents.human-loop.questions-surface-questionasked-options
    #= agents.modes-capabilities.questions-permissions-claude-code
    def test_the_answer_to_a_question_reaches_the_model(self) -> None:
        turn = self.turn(
            self.session(**self.asking), "[[ask:Which colour?|Red|Blue]][[text:noted]]", None, choose("Blue")
        )
        (asked,) = turn.of("questionAsked")
        (question,) = asked["questions"]
        self.assertEqual(question["question"], "Which colour?")
        self.assertEqual([option["label"] for option in question["options"]][:2], ["Red", "Blue"])
        (answered,) = turn.of("questionResolved")
        self.assertEqual((answered["id"], answered["outcome"]), (asked["id"], "answered"))
        self.assertEqual(turn.said(), ["noted"])
        # Both labels are in the question; the chosen one is also in the answer.
        heard = self.asked_model()[-1].text()
        self.assertGreater(heard.count("Blue"), heard.count("Red"))

    #= agents.human-loop.questions-surface-questionasked-options
    def test_a_rejected_question_does_not_end_the_turn(self) -> None:
        turn = self.turn(self.session(**self.asking), "[[ask:Which size?|S|M]][[text:as you wish]]", None, refuse)
        self.assertEqual([resolved["outcome"] for resolved in turn.of("questionResolved")], ["rejected"])
        self.assertEqual(turn.said(), ["as you wish"])

    # === aborts and errors ===

    #= agents.besides-document.turn-aborted-without-session
    def test_a_slow_turn_is_aborted_and_the_session_continues(self) -> None:
        session = self.session()
        watch = self.watch(session)
        session.prompt("[[slow:600]]")
        watch.until_kind("itemDelta")
        session.abort()
        turn = self.follow(session, watch)
        self.assertEqual(turn.end["outcome"], "interrupted")
        self.assertEqual(
            {item["status"] for item in turn.of("itemCompleted") if item["kind"] == "message"}, {"interrupted"}
        )
        self.standin.wait_for(lambda request: request.outcome == "gone")
        after = self.turn(session, "Still there?")
        self.assertEqual(after.said(), ["You said: Still there?"])
        session.abort()
        self.assertEqual(session.info()["status"], "idle")

    #= promises.agents-server.abort
    def test_an_abort_withdraws_requests(self) -> None:
        session = self.session()
        watch = self.watch(session)
        session.prompt("[[bash:touch five]][[text:never said]]")
        asked = watch.until_kind("permissionAsked").data
        self.assertEqual(session.info()["status"], "waiting")
        session.abort()
        turn = self.follow(session, watch)
        self.assertEqual(turn.end["outcome"], "interrupted")
        resolved = [(answered["id"], answered["outcome"]) for answered in turn.of("permissionResolved")]
        self.assertEqual(resolved, [(asked["id"], "withdrawn")])
        self.assertFalse((self.scratch.workspace / "five").exists())
        self.assertEqual(self.turn(session, "Still there?").said(), ["You said: Still there?"])

    #= promises.agents-server.abort
    def test_an_abort_kills_the_running_command(self) -> None:
        session = self.session(permissionMode="bypass")
        watch = self.watch(session)
        session.prompt(f"[[bash:{self.blocking_command()}]][[text:never said]]")
        self.await_command()
        session.abort()
        self.assertEqual(self.follow(session, watch).end["outcome"], "interrupted")
        self.scratch.await_end("sleep 1000", LIMIT)
        self.assertEqual(self.turn(session, "Still there?").said(), ["You said: Still there?"])

    def test_an_error_of_the_model_fails_the_turn_but_not_the_session(self) -> None:
        session = self.session()
        turn = self.turn(session, "[[error:400]]")
        self.assertEqual(turn.end["outcome"], "failed")
        self.assertIn("the stand-in is set to answer 400", str(turn.of("error")))
        self.assertEqual(self.turn(session, "Are you back?").said(), ["You said: Are you back?"])

    #= promises.agents-server.prompts-wait
    def test_a_prompt_during_a_turn_is_queued(self) -> None:
        session = self.session()
        watch = self.watch(session)
        session.prompt("[[bash:touch six]][[text:first]]")
        asked = watch.until_kind("permissionAsked").data
        session.prompt("second")
        self.assertEqual(session.info()["queued"], 1)
        session.permit(asked["id"], "once")
        first = self.follow(session, watch)
        self.assertEqual(first.said(), ["first"])
        both = self.follow(session, watch)
        self.assertEqual(both.said(), ["first", "You said: second"])

    # === lives ===

    #= agents.session-management.agent-id-surfaced-events
    #= agents.execution-models.several-turns-resume
    #= agents.besides-document.sessions-survive-restart-asked
    #= promises.agents-server.conversation-after-restart-resume
    #= agents.compatibility.session-ids-session-id
    def test_a_session_and_its_conversation_survive_a_restart(self) -> None:
        session = self.session(permissionMode="bypass")
        self.turn(session, "Remember the word quince")
        before, native = session.events("full"), session.info()["agentSessionId"]
        self.restart()
        session = self.server.client.session("one")
        self.assertEqual(
            [event.whole for event in session.events("full")][: len(before)], [event.whole for event in before]
        )
        self.assertEqual(session.info()["agentSessionId"], native)
        turn = self.turn(session, "Which word?")
        self.assertEqual(turn.said(), ["You said: Which word?"])
        self.assert_heard("Remember the word quince")
        self.assertEqual(session.info()["agentSessionId"], native)
        numbers = [event.id for event in session.events("full")]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))

    #= agents.session-management.agent-id-surfaced-events
    #= agents.compatibility.session-ids-session-id
    def test_the_agent_session_id_is_the_agents_own(self) -> None:
        session = self.session()
        self.turn(session, "Hello")
        native = session.info()["agentSessionId"]
        events = session.events("full", raw=True)
        own = [self.native_id(event.whole["raw"]) for event in events if isinstance(event.whole.get("raw"), dict)]
        self.assertEqual({name for name in own if name}, {native})
        (start,) = (at for at, event in enumerate(events) if event.kind == "turnStarted")
        self.assertEqual({event.whole["agentSessionId"] for event in events[start:]}, {native})

    #= promises.agents-server.conversation-after-restart-resume
    def test_a_session_is_resumed_after_its_end(self) -> None:
        session = self.session()
        self.turn(session, "Remember the word medlar")
        native = session.info()["agentSessionId"]
        session.terminate()
        self.assertEqual((session.info()["ended"], session.info()["exit"]["reason"]), (True, "terminated"))
        session.resume()
        self.assertFalse(session.info()["ended"])
        self.turn(session, "Which word?")
        self.assert_heard("Remember the word medlar")
        self.assertEqual(session.info()["agentSessionId"], native)

    def test_a_deleted_session_is_gone(self) -> None:
        session = self.session()
        self.turn(session, "Hello")
        session.delete()
        self.assertEqual([one["sessionId"] for one in self.server.client.call("GET", "/v1/sessions")["sessions"]], [])
        again = self.session()
        self.turn(again, "Who are you?")
        self.assertNotIn("Hello", str([message for message in again.events() if message.kind == "message"]))

    #= promises.agents-server.processes-left-agent
    def test_a_shutdown_ends_a_slow_turn_and_kills_a_running_command(self) -> None:
        talking = self.session("talking")
        watch = self.watch(talking)
        talking.prompt("[[slow:600]]")
        watch.until_kind("itemDelta")
        working = self.session("working", permissionMode="bypass")
        working.prompt(f"[[bash:{self.blocking_command()}]]")
        self.await_command()
        self.assertTrue(self.scratch.processes("sleep 1000"))
        self.stop()
        self.assert_nothing_left()

    # === what else it can ===

    #= agents.execution-models.model-permission-mode-plan
    def test_models_are_listed_and_can_be_selected(self) -> None:
        listed = self.server.client.models(self.agent)
        models = [model["id"] for model in listed["models"]]
        self.assertGreater(len(models), 1)
        self.assertEqual(len(models), len(set(models)))
        self.turn(self.session(), "Hello")
        usual = self.asked_model()[-1].body["model"]
        chosen = self.another_model(models, usual)
        session = self.session("another", model=chosen)
        self.assertEqual(session.info()["model"], chosen)
        self.assertEqual(self.turn(session, "Hello").said(), ["You said: Hello"])
        used = self.asked_model()[-1].body["model"]
        self.assertNotEqual(used, usual)
        self.assertIn(chosen, used)
        # The model of a session can be changed.
        session.change(model=self.another_model(models, used))
        self.turn(session, "Hello")
        self.assertNotEqual(self.asked_model()[-1].body["model"], used)

    #= promises.agents-server.published-agents-driven
    def test_it_is_listed_as_installed(self) -> None:
        (listed,) = (agent for agent in self.server.client.agents() if agent["id"] == self.agent)
        self.assertTrue(listed["installed"])
        self.assertTrue(listed["path"])
        self.assertEqual(listed["version"], VERSIONS[self.agent])

    # === helpers ===

    def rules(self) -> list[str]:
        """Permission rules in the agent's settings files."""
        raise NotImplementedError

    def view(self, path: str) -> str:
        """A step in which the agent reads a picture."""
        raise NotImplementedError

    def assert_picture(self, part: dict[str, Any], path: str) -> None:
        """Asserts that a part is the picture at this path."""
        raise NotImplementedError

    def native_id(self, raw: dict[str, Any]) -> str | None:
        """The agent's own id of the session in one of its messages."""
        raise NotImplementedError

    @staticmethod
    def another_model(models: list[str], used: str) -> str:
        """A model whose name tells it from the one that is used."""
        return next(model for model in models if model not in used and model != "default")

    def blocking_command(self) -> str:
        """A command that reports its start and then does not exit."""
        os.mkfifo(self.scratch.workspace / "running")
        return f"echo > {self.path('running')}; sleep 1000"

    def await_command(self) -> None:
        """Waits until the command has started: opening a FIFO waits for both sides."""
        (self.scratch.workspace / "running").read_text()
