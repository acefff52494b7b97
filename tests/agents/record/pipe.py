"""A child process that exchanges JSON lines on standard input and output."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

LIMIT = 60.0


class Pipe:
    """The child process and all its output lines."""

    def __init__(self, command: list[str], directory: Path, env: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self._child = subprocess.Popen(
            command,
            cwd=directory,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child.stdout
        for line in self._child.stdout:
            self._arrived.put(line.rstrip("\n"))
        self._arrived.put(None)

    def send(self, message: dict[str, Any]) -> None:
        assert self._child.stdin
        self._child.stdin.write(json.dumps(message) + "\n")
        self._child.stdin.flush()

    def until(self, wanted: Callable[[dict[str, Any]], bool], on: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Reads until a message matches; earlier messages are passed to `on`."""
        while (line := self._arrived.get(timeout=LIMIT)) is not None:
            self.lines.append(line)
            message = json.loads(line)
            if wanted(message):
                return message
            on(message)
        self._arrived.put(None)
        raise EOFError("the agent exited")

    def rest(self) -> None:
        """Closes its input and reads until it exits."""
        assert self._child.stdin
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        while (line := self._arrived.get(timeout=LIMIT)) is not None:
            self.lines.append(line)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
