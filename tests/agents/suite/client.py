"""A client of the agents server: requests, sessions, and event streams."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

# Deadline of every wait.
LIMIT = 60.0


class Problem(Exception):
    """An error response of the server."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.code = body.get("type", "").rpartition(":")[2] if isinstance(body, dict) else ""
        self.body = body


@dataclass(frozen=True)
class Event:
    """An event of a session: its id, its kind, its data, and the whole event."""

    id: int
    kind: str
    data: Any
    whole: dict[str, Any]

    @staticmethod
    def parse(whole: dict[str, Any]) -> Event:
        ((kind, data),) = whole["data"].items()
        return Event(whole["id"], kind, data, whole)

    def parts(self, kind: str) -> list[dict[str, Any]]:
        """The parts of this kind, if it is a message."""
        if self.kind != "message":
            return []
        return [part for part in self.data.get("parts", []) if part["type"] == kind]

    def texts(self, role: str) -> list[str]:
        """The texts of this role."""
        return [part["text"] for part in self.parts("text")] if self.data.get("role") == role else []


@dataclass(frozen=True)
class Client:
    port: int

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """The response of the server; raises [`Problem`] on an error."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            sent = None if body is None else json.dumps(body)
            typed = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, sent, {**typed, **(headers or {})})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        answer = json.loads(text) if text else None
        if response.status >= 400:
            raise Problem(response.status, answer)
        return answer

    def models(self, agent: str) -> dict[str, Any]:
        return self.call("GET", f"/v1/agents/{agent}/models")

    def agents(self) -> list[dict[str, Any]]:
        return self.call("GET", "/v1/agents")["agents"]

    def session(self, name: str) -> Session:
        return Session(self, name)


@dataclass(frozen=True)
class Session:
    client: Client
    name: str

    def _call(self, method: str, what: str = "", body: Any = None, headers: dict[str, str] | None = None) -> Any:
        return self.client.call(method, f"/v1/sessions/{quote(self.name)}{what}", body, headers)

    def create(self, agent: str, **options: Any) -> dict[str, Any]:
        return self._call("POST", "", {"agent": agent, **options})

    def info(self) -> dict[str, Any]:
        return self._call("GET")

    def change(self, **options: Any) -> dict[str, Any]:
        return self._call("PATCH", "", options)

    def delete(self) -> None:
        self._call("DELETE")

    def prompt(self, message: str) -> None:
        self._call("POST", "/messages", {"message": message})

    def abort(self) -> None:
        self._call("POST", "/abort")

    def resume(self) -> None:
        self._call("POST", "/resume")

    def terminate(self) -> None:
        self._call("POST", "/terminate")

    def permit(self, permission: str, reply: str, message: str | None = None) -> None:
        said = {} if message is None else {"message": message}
        self._call("POST", f"/permissions/{quote(permission)}/reply", {"reply": reply, **said})

    def answer(self, question: str, answers: list[list[str]]) -> None:
        self._call("POST", f"/questions/{quote(question)}/reply", {"answers": answers})

    def reject(self, question: str) -> None:
        self._call("POST", f"/questions/{quote(question)}/reject")

    def events(self, view: str = "default", offset: int = 0, raw: bool = False) -> list[Event]:
        query = urlencode({"view": view, "offset": offset, "includeRaw": str(raw).lower()})
        return [Event.parse(event) for event in self._call("GET", f"/events?{query}")["events"]]

    def watch(self, view: str = "full", offset: int = 0) -> Watch:
        return Watch(self, view, offset)


class Watch:
    """The event stream of a session, after an id."""

    def __init__(self, session: Session, view: str, offset: int) -> None:
        self.seen: list[Event] = []
        # The server sends keep-alives more often than this.
        self._connection = http.client.HTTPConnection("127.0.0.1", session.client.port, timeout=LIMIT)
        query = urlencode({"view": view, "offset": offset})
        self._connection.request("GET", f"/v1/sessions/{quote(session.name)}/events/sse?{query}")
        self._response = self._connection.getresponse()
        if self._response.status != 200:
            raise Problem(self._response.status, json.loads(self._response.read()))

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """Reads until an event matches."""
        end = time.monotonic() + LIMIT
        for event in self._events(end):
            if wanted(event):
                return event
        kinds = ", ".join(event.kind for event in self.seen[-20:])
        raise AssertionError(f"the expected event did not arrive; last events: {kinds}")

    def until_kind(self, kind: str) -> Event:
        return self.until(lambda event: event.kind == kind)

    def _events(self, end: float) -> Iterator[Event]:
        number = None
        while time.monotonic() < end and (line := self._response.readline()):
            field, _, value = line.decode().rstrip("\r\n").partition(": ")
            if field == "id":
                number = int(value)
            elif field == "data":
                event = Event.parse(json.loads(value))
                assert event.id == number, f"the event has id {event.id}, its frame {number}"
                self.seen.append(event)
                yield event

    def close(self) -> None:
        self._response.close()
        self._connection.close()
