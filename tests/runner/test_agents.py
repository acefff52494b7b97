import contextlib
import io
import tempfile
import unittest
from pathlib import Path

from .agents import PublishedAgents, parse_report
from .outcome import Ledger, Outcome, Status
from .process import Finished, Watchdog

REPORT = """something that a library said
{"name": "a_text_is_answered", "status": "passed", "seconds": 0.5, "detail": ""}
{"name": "a_question_is_answered", "status": "failed", "seconds": 1.25, "detail": "why"}
"""


class Scripted(Watchdog):
    """Runs nothing: answers one command after the other from a list."""

    def __init__(self, answers: list[Finished]) -> None:
        self.answers = answers
        self.commands: list[list[str]] = []

    def run(self, command: list[str], **_: object) -> Finished:  # type: ignore[override]
        self.commands.append(command)
        return self.answers.pop(0)


def _run(*answers: Finished) -> tuple[Ledger, list[list[str]]]:
    ledger, watchdog = Ledger(), Scripted(list(answers))
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        PublishedAgents(ledger, watchdog, Path(place), Path("/p/sandbox-agent"), Path(place), 60.0).run()
    return ledger, watchdog.commands


OK = Finished(0, False, 1.0, "", "")
PASSED = Finished(0, False, 1.0, REPORT.splitlines(keepends=True)[1], "")


class PublishedAgentsTest(unittest.TestCase):
    def test_every_line_of_the_report_is_an_outcome(self) -> None:
        self.assertEqual(
            parse_report(REPORT, "claude"),
            [
                Outcome("agents::claude::a_text_is_answered", Status.PASSED, 0.5),
                Outcome("agents::claude::a_question_is_answered", Status.FAILED, 1.25, "why"),
            ],
        )

    def test_each_agent_is_installed_before_its_suite_runs(self) -> None:
        ledger, commands = _run(OK, PASSED, OK, PASSED)
        installs = [command for command in commands if "install-agent" in command]
        self.assertEqual([command[-1] for command in installs], ["claude", "codex"])
        self.assertEqual(ledger.count(Status.PASSED), 2)

    def test_an_agent_that_cannot_be_installed_fails_and_the_other_is_run(self) -> None:
        ledger, _ = _run(Finished(1, False, 1.0, "", "no registry"), OK, PASSED)
        self.assertEqual(ledger.named(Status.FAILED), ["agents::claude::install"])
        self.assertEqual(ledger.count(Status.PASSED), 1)

    def test_a_suite_that_dies_fails_whatever_had_passed(self) -> None:
        dead = Finished(-9, False, 1.0, PASSED.output, "")
        ledger, _ = _run(OK, dead, OK, OK)
        self.assertEqual(ledger.named(Status.FAILED), ["agents::claude", "agents::codex"])


if __name__ == "__main__":
    unittest.main()
