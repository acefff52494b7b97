"""One test: its scratch, its stand-in, its server, and a turn from prompt to end."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from standin import Request, Standin

from .client import Event, Session, Watch
from .scratch import Scratch
from .server import Server

# For how long guards outlive their server at most.
GUARDS = 10.0

Permit = Callable[[dict[str, Any]], str]
# The answers to what was asked, or nothing to refuse an answer.
Answer = Callable[[dict[str, Any]], list[list[str]] | None]


def once(_: dict[str, Any]) -> str:
    return "once"


def always(_: dict[str, Any]) -> str:
    return "always"


def reject(_: dict[str, Any]) -> str:
    return "reject"


def choose(label: str) -> Answer:
    """Answers every question with this label."""
    return lambda asked: [[label] for _ in asked["questions"]]


def refuse(_: dict[str, Any]) -> list[list[str]] | None:
    return None


@dataclass(frozen=True)
class Turn:
    """What happened in a turn."""

    events: list[Event]

    @property
    def end(self) -> dict[str, Any]:
        return self.events[-1].data

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]

    def said(self, role: str = "assistant") -> list[str]:
        return [text for event in self.events for text in event.texts(role)]

    def calls(self) -> list[dict[str, Any]]:
        return [part for event in self.events for part in event.parts("tool_call")]

    def results(self) -> list[dict[str, Any]]:
        return [part for event in self.events for part in event.parts("tool_result")]


class Case(unittest.TestCase):
    """A test of the real server with a real agent. After each one nothing of it may be left running."""

    agent: str

    def setUp(self) -> None:
        self.scratch = Scratch()
        self.addCleanup(self.scratch.close)
        self.standin = Standin()
        self.addCleanup(self.standin.close)
        self.server = Server(self.scratch, self.standin)
        self.addCleanup(self._end)

    def _end(self) -> None:
        self.stop()
        self.assert_nothing_left()

    def stop(self) -> None:
        self.assertEqual(self.server.stop(), 0, f"the server's end: {self.server.said}")

    def assert_nothing_left(self) -> None:
        """The guards of a server may still be ending what they guard when it has ended, and take no longer than this."""
        self.scratch.await_end("", GUARDS)

    def restart(self) -> None:
        self.stop()
        self.server = Server(self.scratch, self.standin)

    def session(self, name: str = "one", **options: Any) -> Session:
        session = self.server.client.session(name)
        created = session.create(self.agent, directory=str(self.scratch.workspace), **options)
        self.assertTrue(created["healthy"], created)
        return session

    def watch(self, session: Session) -> Watch:
        """What happens from now on."""
        before = session.events("full")
        watch = session.watch("full", before[-1].id if before else 0)
        self.addCleanup(watch.close)
        return watch

    def turn(self, session: Session, prompt: str, permit: Permit | None = None, answer: Answer | None = None) -> Turn:
        """Prompts and answers whatever is asked, until the turn has ended. What nobody may ask fails the test."""
        watch = self.watch(session)
        session.prompt(prompt)
        return self.follow(session, watch, permit, answer)

    def follow(
        self, session: Session, watch: Watch, permit: Permit | None = None, answer: Answer | None = None
    ) -> Turn:
        while True:
            event = watch.until(
                lambda event: event.kind in ("turnEnded", "permissionAsked", "questionAsked", "sessionEnded")
            )
            if event.kind == "permissionAsked":
                self.assertIsNotNone(permit, f"asked for a permission: {event.data}")
                assert permit
                session.permit(event.data["id"], permit(event.data))
            elif event.kind == "questionAsked":
                self.assertIsNotNone(answer, f"asked a question: {event.data}")
                assert answer
                answers = answer(event.data)
                if answers is None:
                    session.reject(event.data["id"])
                else:
                    session.answer(event.data["id"], answers)
            else:
                self.assertEqual(event.kind, "turnEnded", event.data)
                return Turn(list(watch.seen))

    def assert_heard(self, words: str) -> None:
        """The last request to the model had these words in it."""
        self.assertTrue(words in self.asked_model()[-1].text(), f"the model did not hear: {words}")

    def asked_model(self) -> list[Request]:
        """The requests for an answer of the model that the stand-in saw."""
        found = self.standin.requests("/v1/messages") + self.standin.requests("/v1/responses")
        return [request for request in found if isinstance(request.body, dict) and request.body.get("stream")]
