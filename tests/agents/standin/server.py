"""The HTTP server of the stand-in: loopback, one thread per connection; every request is recorded."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any
from urllib.parse import urlsplit

from . import messages, responses
from .answer import Event

APIS: dict[str, ModuleType] = {"/v1/messages": messages, "/v1/responses": responses}


@dataclass
class Request:
    """A received request, and its outcome: `answered`, or `gone` if the client disconnected early."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any = None
    outcome: str = "open"

    def text(self) -> str:
        """The body as one text, for searches."""
        return json.dumps(self.body)


@dataclass
class _Kept:
    """All requests in order of arrival."""

    requests: list[Request] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    closing: threading.Event = field(default_factory=threading.Event)

    def add(self, request: Request) -> None:
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()

    def finish(self, request: Request, outcome: str) -> None:
        with self.changed:
            request.outcome = outcome
            self.changed.notify_all()


class Standin:
    """A stand-in that runs until it is closed."""

    def __init__(self) -> None:
        self._kept = _Kept()
        kept = self._kept
        handler = type("Handler", (_Handler,), {"kept": kept})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests(self, path: str = "") -> list[Request]:
        """The requests so far, or those to this path."""
        with self._kept.changed:
            return [request for request in self._kept.requests if request.path.startswith(path)]

    def wait_for(self, wanted: Callable[[Request], bool], seconds: float = 30.0) -> Request:
        """The first request that matches, now or later."""
        end = time.monotonic() + seconds
        with self._kept.changed:
            while True:
                for request in self._kept.requests:
                    if wanted(request):
                        return request
                if not self._kept.changed.wait(max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"no such request within {seconds} s among {len(self._kept.requests)}")

    def close(self) -> None:
        self._kept.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Standin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kept: _Kept

    def do_HEAD(self) -> None:
        self._keep(None)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/_requests":
            with self.kept.changed:
                seen = [vars(request) for request in self.kept.requests]
            return self._json(200, {"requests": seen})
        self._keep(None)
        if path == "/v1/models":
            return self._json(200, {"object": "list", "data": [], "models": []})
        return self._json(404, messages.error(404))

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        raw = self.rfile.read(length)
        try:
            body = json.loads(raw)
        except ValueError:
            self._keep(raw.decode(errors="replace"))
            return self._json(400, messages.error(400))
        request = self._keep(body)
        path = urlsplit(self.path).path
        if path == "/v1/messages/count_tokens":
            return self._json(200, {"input_tokens": max(1, length // 4)})
        if path not in APIS:
            return self._json(404, messages.error(404))
        self._answer(request, APIS[path])

    def _answer(self, request: Request, api: ModuleType) -> None:
        said = api.answer(request.body)
        try:
            if said.status != 200:
                self._json(said.status, api.error(said.status))
            elif request.body.get("stream"):
                self._stream(api.events(request.body, said))
            else:
                self._json(200, api.whole(request.body, said))
        except OSError:
            self.close_connection = True
            return self.kept.finish(request, "gone")
        self.kept.finish(request, "answered")

    def _stream(self, events: Iterator[Event]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            if event.pause and self.kept.closing.wait(event.pause):
                raise ConnectionAbortedError
            frame = f"event: {event.data['type']}\ndata: {json.dumps(event.data)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _keep(self, body: Any) -> Request:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body)
        self.kept.add(request)
        return request

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: requests are recorded."""
