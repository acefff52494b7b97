"""Base class of the tests: scratch directories, stand-in model, server, and helpers for turns."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from standin import Request, Standin

from .client import Event, Session, Watch
from .scratch import Scratch
from .server import Server, Setup

# Maximum time that guards outlive their server.
GUARDS = 10.0

Permit = Callable[[dict[str, Any]], str]
# The answers to questions, or None to reject them.
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
    """The events of a turn."""

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
    """A test of the real server with a real agent. It must leave no process behind."""

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
        self.assertEqual(self.server.stop(), 0, f"the server failed: {self.server.said}")

    def assert_nothing_left(self) -> None:
        """Guards may still be killing processes after their server has exited, but not for longer than this."""
        self.scratch.await_end("", GUARDS)

    def restart(self, setup: Setup | None = None) -> None:
        self.stop()
        self.server = Server(self.scratch, self.standin, setup)

    def session(self, name: str = "one", **options: Any) -> Session:
        session = self.server.client.session(name)
        created = session.create(self.agent, directory=str(self.scratch.workspace), **options)
        self.assertTrue(created["healthy"], created)
        return session

    def watch(self, session: Session) -> Watch:
        """The events from now on."""
        before = session.events("full")
        watch = session.watch("full", before[-1].id if before else 0)
        self.addCleanup(watch.close)
        return watch

    def turn(self, session: Session, prompt: str, permit: Permit | None = None, answer: Answer | None = None) -> Turn:
        """Sends a prompt and answers requests until the turn ends. An unexpected request fails the test."""
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
                self.assertIsNotNone(permit, f"unexpected permission request: {event.data}")
                assert permit
                session.permit(event.data["id"], permit(event.data))
            elif event.kind == "questionAsked":
                self.assertIsNotNone(answer, f"unexpected question: {event.data}")
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
        """Asserts that the last request to the model contained this text."""
        self.assertTrue(words in self.asked_model()[-1].text(), f"the model did not receive: {words}")

    def asked_model(self) -> list[Request]:
        """The requests that the stand-in model received."""
        found = self.standin.requests("/v1/messages") + self.standin.requests("/v1/responses")
        return [request for request in found if isinstance(request.body, dict) and request.body.get("stream")]
