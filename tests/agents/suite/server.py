"""The real server as a process, with the stand-in as the model of its agents."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from record.codex import MODEL, configuration
from standin import Standin

from .client import LIMIT, Client
from .scratch import Scratch

LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


def environment(scratch: Scratch, standin: Standin) -> dict[str, str]:
    """Environment of the server and its agents, without settings of the user who runs the tests."""
    # The directory of `sandbox-agent install-agent`. Without it agents are searched in PATH.
    installed = Path(os.environ.get("XDG_DATA_HOME", "/nonexistent")) / "sandbox-agent" / "bin"
    link = scratch.data / "sandbox-agent" / "bin"
    if installed.is_dir() and not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(installed)
    return {
        "HOME": str(scratch.home),
        "PATH": os.environ.get("PATH", os.defpath),
        "TMPDIR": str(scratch.temporary),
        "XDG_DATA_HOME": str(scratch.data),
        "SANDBOX_AGENT_REQUIRE_PREINSTALL": "1",
        "ANTHROPIC_BASE_URL": standin.url,
        "ANTHROPIC_API_KEY": "sk-ant-dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "STANDIN_API_KEY": "dummy",
        "OPENAI_API_KEY": "sk-dummy",
    }


@dataclass(frozen=True)
class Setup:
    """What differs from the usual environment of a server."""

    # Variables that are set, or removed if None.
    variables: dict[str, str | None] = field(default_factory=dict)
    # The variable from which Codex takes the key of its provider.
    codex_key: str = "STANDIN_API_KEY"


class Server:
    """One run of `sandbox-agent server`."""

    def __init__(self, scratch: Scratch, standin: Standin, setup: Setup | None = None) -> None:
        setup = setup or Setup()
        program = os.environ.get("SANDBOX_AGENT_BIN") or shutil.which("sandbox-agent")
        if not program:
            raise RuntimeError("SANDBOX_AGENT_BIN is not set to a sandbox-agent program")
        home = scratch.home / ".codex"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(configuration(standin.port, MODEL, setup.codex_key))
        changed = {**environment(scratch, standin), **setup.variables}
        command = [program, "server", "--host", "127.0.0.1", "--port", "0", "--no-token"]
        command += ["--data-dir", str(scratch.sessions)]
        self.said: list[str] = []
        self._port: Queue[int | None] = Queue()
        self.child = subprocess.Popen(
            command,
            cwd=scratch.workspace,
            env={name: value for name, value in changed.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        port = self._port.get(timeout=LIMIT)
        if port is None:
            raise RuntimeError(f"the server exited: {self.said}")
        self.client = Client(port)

    def _read(self) -> None:
        assert self.child.stderr
        for line in self.child.stderr:
            self.said.append(line.rstrip("\n"))
            if found := LISTENING.search(line):
                self._port.put(int(found[1]))
        self._port.put(None)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stops it, and waits for its exit."""
        if self.child.poll() is None:
            self.child.send_signal(number)
        try:
            return self.child.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise
