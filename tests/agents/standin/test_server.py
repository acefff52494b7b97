import http.client
import json
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

from .server import Standin

ASKED = {"model": "m", "tools": [{"name": "Bash"}], "messages": [{"role": "user", "content": "[[text:one two]]"}]}


class TheServer(unittest.TestCase):
    def setUp(self) -> None:
        self.standin = Standin()
        self.addCleanup(self.standin.close)

    def _connection(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.standin.port, timeout=30)
        self.addCleanup(connection.close)
        return connection

    def _post(self, path: str, body: Any, by: http.client.HTTPConnection | None = None) -> http.client.HTTPResponse:
        connection = by or self._connection()
        connection.request("POST", path, json.dumps(body), {"x-api-key": "dummy"})
        return connection.getresponse()

    def test_responds_with_and_without_streaming(self) -> None:
        whole = json.loads(self._post("/v1/messages?beta=true", ASKED).read())
        self.assertEqual(whole["content"], [{"type": "text", "text": "one two"}])
        response = self._post("/v1/messages", {**ASKED, "stream": True})
        self.assertEqual(response.getheader("Content-Type"), "text/event-stream")
        lines = response.read().decode().splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        self.assertEqual([f"event: {event['type']}" for event in events], [line for line in lines if line[:2] == "ev"])
        self.assertEqual(events[-1]["type"], "message_stop")

    def test_records_every_request(self) -> None:
        self._post("/v1/messages", ASKED).read()
        self.assertGreater(json.loads(self._post("/v1/messages/count_tokens", ASKED).read())["input_tokens"], 0)
        connection = self._connection()
        connection.request("HEAD", "/api/hello")
        self.assertEqual(connection.getresponse().status, 200)
        kept = [(request.method, request.path) for request in self.standin.requests()]
        paths = ["/v1/messages", "/v1/messages/count_tokens", "/api/hello"]
        self.assertEqual(kept, list(zip(("POST", "POST", "HEAD"), paths, strict=True)))
        self.assertEqual(self.standin.requests("/v1/messages")[0].headers["x-api-key"], "dummy")
        connection = self._connection()
        connection.request("GET", "/_requests")
        asked = json.loads(connection.getresponse().read())["requests"]
        self.assertEqual((asked[0]["body"], asked[0]["outcome"]), (ASKED, "answered"))

    def test_an_error_has_the_scripted_status(self) -> None:
        script = {**ASKED, "messages": [{"role": "user", "content": "[[error:529]]"}]}
        response = self._post("/v1/messages", script)
        self.assertEqual((response.status, json.loads(response.read())["error"]["type"]), (529, "overloaded_error"))
        self.assertEqual(self._post("/v1/nothing", {}).status, 404)

    def test_a_disconnect_during_a_slow_response_is_noticed(self) -> None:
        slow = {**ASKED, "stream": True, "messages": [{"role": "user", "content": "[[slow:60]]"}]}
        connection = self._connection()
        response = self._post("/v1/messages", slow, connection)
        while b"text_delta" not in response.readline():
            pass
        self.assertEqual(self.standin.requests()[0].outcome, "open")
        response.close()
        connection.close()
        gone = self.standin.wait_for(lambda request: request.outcome == "gone")
        self.assertEqual(gone.body, slow)

    def test_closing_ends_a_slow_response(self) -> None:
        standin = Standin()
        connection = http.client.HTTPConnection("127.0.0.1", standin.port, timeout=30)
        self.addCleanup(connection.close)
        slow = {**ASKED, "stream": True, "messages": [{"role": "user", "content": "[[slow:60]]"}]}
        connection.request("POST", "/v1/messages", json.dumps(slow))
        response = connection.getresponse()
        response.readline()
        standin.close()
        with self.assertRaises(http.client.HTTPException):
            response.read()


class TheProgram(unittest.TestCase):
    def test_prints_its_port_and_exits_with_its_input(self) -> None:
        place = Path(__file__).resolve().parent.parent
        command = [sys.executable, "-m", "standin"]
        with subprocess.Popen(command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin and program.stdout
            self.addCleanup(program.kill)
            port = json.loads(program.stdout.readline())["port"]
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            self.addCleanup(connection.close)
            connection.request("GET", "/v1/models")
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()
            program.stdin.close()
            self.assertEqual(program.wait(timeout=30), 0)


if __name__ == "__main__":
    unittest.main()
