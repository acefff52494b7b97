"""`python3 -m record claude=PATH codex=PATH`: records all scenarios of these agents, or one: `claude/text=PATH`."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from pathlib import Path

from standin import Standin

from . import claude, codex
from .trim import trim

FIXTURES = Path(__file__).resolve().parents[3] / "crates" / "agents" / "tests" / "fixtures"


def record(agent: str, binary: Path, name: str) -> list[str]:
    # Not below the temporary directory: Codex sets up no helpers in such a home.
    with Standin() as standin, tempfile.TemporaryDirectory(dir="/var/tmp", prefix="record-") as made:
        scratch = Path(made)
        home, project, temporary = scratch / "home", scratch / "project", scratch / "tmp"
        for directory in (home / ".codex", project, temporary):
            directory.mkdir(parents=True)
        env = {"HOME": str(home), "PATH": os.environ["PATH"], "TMPDIR": str(temporary)}
        if agent == "claude":
            env |= {"ANTHROPIC_BASE_URL": standin.url, "ANTHROPIC_API_KEY": "sk-ant-dummy"}
            env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_RETRIES": "1"}
            lines = claude.record(binary, project, env, claude.SCENARIOS[name], str(uuid.uuid4()))
        else:
            scenario = codex.SCENARIOS[name]
            (home / ".codex" / "config.toml").write_text(codex.configuration(standin.port, scenario.model))
            lines = codex.record(binary, project, {**env, "STANDIN_API_KEY": "dummy"}, scenario)
        return trim(lines, scratch)


def main() -> None:
    for wanted, binary in (argument.split("=", 1) for argument in sys.argv[1:]):
        agent, _, only = wanted.partition("/")
        scenarios = claude.SCENARIOS if agent == "claude" else codex.SCENARIOS
        for name in [only] if only else scenarios:
            lines = record(agent, Path(binary), name)
            file = FIXTURES / agent / f"{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{line}\n" for line in lines))
            print(f"{agent}/{name}: {len(lines)} lines, {file.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
