"""Parses the output of Rust's test harness: JSON if it is available, otherwise text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from .outcome import Outcome, Status

JSON_ARGUMENTS = ["-Z", "unstable-options", "--format", "json", "--report-time"]
# The harness of a stable compiler needs this for the arguments above.
JSON_ENV = {"RUSTC_BOOTSTRAP": "1"}

# With this the harness passes on what successful tests print as well.
SHOW_OUTPUT = "--show-output"
# What a test prints when it returns because its host lacks something; the harness knows no such outcome.
_SKIPPED = re.compile(r"^test skipped: (?P<reason>.+)$", re.MULTILINE)

_RESULTS = {"ok": Status.PASSED, "failed": Status.FAILED, "ignored": Status.SKIPPED}
_PLAIN_RESULT = re.compile(
    r"^test (?P<name>.+?)(?: - (?:should panic|compile|compile fail))? \.\.\. "
    r"(?P<result>ok|FAILED|ignored)(?:, (?P<message>.*?))?(?: <(?P<seconds>[\d.]+)s>)?$"
)
_PLAIN_OUTPUT = re.compile(r"^---- (?P<name>.+?) stdout ----$")


@dataclass
class Suite:
    """The outcomes that a harness reported; `complete` if it also reported its end."""

    outcomes: list[Outcome] = field(default_factory=list)
    complete: bool = False
    unfinished: list[str] = field(default_factory=list)


def parse_list(text: str) -> list[str]:
    """Parses the output of `--list --format terse`."""
    return [line.removesuffix(": test") for line in text.splitlines() if line.endswith(": test")]


def json_refused(code: int, errors: str) -> bool:
    """Whether the harness does not support `JSON_ARGUMENTS`, and ran nothing."""
    return code != 0 and ("only accepted on the nightly" in errors or "Unrecognized option" in errors)


def parse_json(text: str) -> Suite:
    """Parses JSON events. Tests may write other bytes before and between them."""
    suite = Suite()
    for line in text.splitlines():
        event = _event(line)
        if event is None:
            continue
        if event["type"] == "suite":
            suite.complete = suite.complete or event["event"] in ("ok", "failed")
        elif event["event"] == "started":
            suite.unfinished.append(event["name"])
        elif event["event"] in _RESULTS:
            if event["name"] in suite.unfinished:
                suite.unfinished.remove(event["name"])
            detail = "\n".join(part for part in (event.get("message"), event.get("stdout")) if part)
            status = _RESULTS[event["event"]]
            suite.outcomes.append(_outcome(event["name"], status, event.get("exec_time"), detail))
    return suite


def _event(line: str) -> dict[str, Any] | None:
    start = line.find('{ "type": ')
    if start < 0:
        return None
    try:
        event = json.loads(line[start:])
    except ValueError:
        return None
    return event if event["type"] in ("suite", "test") and "event" in event else None


def _outcome(name: str, status: Status, seconds: float | None, detail: str) -> Outcome:
    skipped = _SKIPPED.search(detail) if status is Status.PASSED else None
    return Outcome(name, Status.SKIPPED, seconds, skipped["reason"]) if skipped else Outcome(name, status, seconds, detail)


def parse_plain(text: str) -> Suite:
    """Parses the human-readable output, which may have several suites, as for documentation tests."""
    found: list[tuple[str, Status, float | None, str]] = []
    printed: dict[str, list[str]] = {}
    current: list[str] | None = None
    suites = finished = 0
    for line in text.splitlines():
        suites += bool(re.match(r"^running \d+ tests?$", line))
        finished += line.startswith("test result: ")
        if match := _PLAIN_RESULT.match(line):
            seconds = float(match["seconds"]) if match["seconds"] else None
            status = _RESULTS[match["result"].lower()]
            found.append((match["name"], status, seconds, match["message"] or ""))
        elif match := _PLAIN_OUTPUT.match(line):
            current = printed.setdefault(match["name"], [])
        elif line in ("failures:", "successes:"):
            current = None
        elif current is not None:
            current.append(line)
    return Suite(
        outcomes=[
            _outcome(name, status, seconds, message or "\n".join(printed.get(name, ())))
            for name, status, seconds, message in found
        ],
        complete=suites > 0 and suites == finished,
    )
