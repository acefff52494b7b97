"""Parsers for the test harnesses of Rust, Python and Node.js."""

import contextlib
import io
import unittest
from pathlib import Path

import artefacts

from . import libtest, rust, typescript
from .foreign import ForeignClients, parse_junit
from .outcome import Ledger, Outcome, Status
from .process import Watchdog

EVENTS = """
{ "type": "suite", "event": "started", "test_count": 3 }
{ "type": "test", "event": "started", "name": "tests::bad" }
{ "type": "test", "event": "started", "name": "tests::late" }
{ "type": "test", "name": "tests::late", "event": "ignored", "message": "why" }
a child wrote this, without a line's end{ "type": "test", "event": "started", "name": "tests::good" }
{ "type": "test", "event": "timeout", "name": "tests::good" }
{ "type": "test", "name": "tests::good", "event": "ok", "exec_time": 0.5 }
{ "type": "test", "name": "tests::bad", "event": "failed", "exec_time": 0.25, "stdout": "line\\npanicked" }
"""
END = '{ "type": "suite", "event": "failed", "passed": 1, "failed": 1, "ignored": 1 }\n'

PLAIN = """
running 4 tests
test tests::late ... ignored, why
test tests::good ... ok
test tests::loud - should panic ... ok
test tests::bad ... FAILED

failures:

---- tests::bad stdout ----
line
panicked

failures:
    tests::bad

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.08s
"""


class Json(unittest.TestCase):
    def test_every_outcome_is_read_with_its_time_and_output(self) -> None:
        suite = libtest.parse_json(EVENTS + END)
        self.assertTrue(suite.complete)
        self.assertEqual(suite.unfinished, [])
        self.assertEqual(
            suite.outcomes,
            [
                Outcome("tests::late", Status.SKIPPED, None, "why"),
                Outcome("tests::good", Status.PASSED, 0.5),
                Outcome("tests::bad", Status.FAILED, 0.25, "line\npanicked"),
            ],
        )

    def test_a_test_that_says_so_was_skipped(self) -> None:
        printed = '"ok", "stdout": "before\\ntest skipped: only root can\\n"'
        outcomes = libtest.parse_json(EVENTS.replace('"ok"', printed)).outcomes
        self.assertEqual(outcomes[1], Outcome("tests::good", Status.SKIPPED, 0.5, "only root can"))
        # A failure stays one.
        failed = EVENTS.replace("line\\npanicked", "test skipped: why")
        self.assertEqual(libtest.parse_json(failed).outcomes[2].status, Status.FAILED)

    def test_a_suite_that_never_says_it_is_done_is_not_complete(self) -> None:
        self.assertFalse(libtest.parse_json(EVENTS).complete)

    def test_a_test_that_never_ended_is_named(self) -> None:
        crash = EVENTS.rsplit("\n", 2)[0]
        self.assertEqual(libtest.parse_json(crash).unfinished, ["tests::bad"])

    def test_a_line_that_only_looks_like_an_event_is_passed_over(self) -> None:
        self.assertEqual(libtest.parse_json('{ "type": broken\n{ "type": "report" }\n').outcomes, [])

    def test_refused_arguments_are_distinguished_from_failed_tests(self) -> None:
        refusal = "error: the option `Z` is only accepted on the nightly compiler"
        self.assertTrue(libtest.json_refused(101, refusal))
        self.assertFalse(libtest.json_refused(101, "thread panicked"))


class Plain(unittest.TestCase):
    def test_every_outcome_is_read_with_its_output(self) -> None:
        suite = libtest.parse_plain(PLAIN)
        self.assertTrue(suite.complete)
        self.assertEqual(
            [(outcome.name, outcome.status.value) for outcome in suite.outcomes],
            [
                ("tests::late", "skipped"),
                ("tests::good", "passed"),
                ("tests::loud", "passed"),
                ("tests::bad", "failed"),
            ],
        )
        self.assertEqual(suite.outcomes[-1].detail, "line\npanicked\n")

    def test_a_test_that_says_so_was_skipped(self) -> None:
        printed = "successes:\n\n---- tests::good stdout ----\ntest skipped: only root can\n\nsuccesses:\n    tests::good\n"
        outcomes = libtest.parse_plain(PLAIN.replace("failures:", f"{printed}\nfailures:", 1)).outcomes
        self.assertEqual(outcomes[1], Outcome("tests::good", Status.SKIPPED, None, "only root can"))
        self.assertEqual(outcomes[2].status, Status.PASSED)

    def test_a_suite_without_its_last_line_is_not_complete(self) -> None:
        self.assertFalse(libtest.parse_plain(PLAIN.split("failures:")[0]).complete)

    def test_documentation_tests_keep_their_place_as_name(self) -> None:
        text = "running 1 test\ntest src/lib.rs - frame (line 3) - compile ... ok\n\ntest result: ok. 1 passed\n"
        self.assertEqual(libtest.parse_plain(text).outcomes[0].name, "src/lib.rs - frame (line 3)")

    def test_names_come_from_a_terse_list(self) -> None:
        self.assertEqual(libtest.parse_list("a::b: test\nc: benchmark\n\n"), ["a::b"])


class Foreign(unittest.TestCase):
    def test_a_client_without_requirements_fails(self) -> None:
        ledger = Ledger()
        with contextlib.redirect_stdout(io.StringIO()):
            ForeignClients(ledger, Watchdog(1.0), Path("/nonexistent/control"), Path("/nonexistent"), 1.0, ("sdk", "plain")).run()
        self.assertEqual(ledger.named(Status.FAILED), ["control/plain", "control/sdk"])


class Names(unittest.TestCase):
    def made(self, kind: str, source: str) -> artefacts.Artefact:
        directory = Path("/r/crates/agentd")
        return artefacts.Artefact("carrel-agentd", "1", kind, "n", directory, directory / source, Path("/x"), True)

    def test_a_unit_test_is_named_by_its_package(self) -> None:
        self.assertEqual(rust.prefix(self.made("bin", "src/main.rs")), "carrel-agentd")

    def test_an_integration_test_is_named_by_its_file(self) -> None:
        self.assertEqual(rust.prefix(self.made("test", "tests/exec.rs")), "carrel-agentd/tests/exec.rs")

    def test_executables_are_taken_from_cargo_messages(self) -> None:
        by_id = {"p": {"name": "carrel-agentd", "version": "0.1.0", "manifest_path": "/r/crates/agentd/Cargo.toml"}}
        message = (
            '{"reason":"compiler-artifact","package_id":"%s","executable":%s,"profile":{"test":false},'
            '"target":{"kind":["bin"],"name":"carrel-agentd","src_path":"/r/crates/agentd/src/main.rs"}}'
        )
        lines = [message % ("p", '"/t/a"'), message % ("p", "null"), message % ("other", '"/t/b"'), "not JSON"]
        self.assertEqual([str(made.executable) for made in artefacts.parse_messages(lines, by_id)], ["/t/a"])


class Junit(unittest.TestCase):
    def test_every_case_is_named_by_client_module_and_test(self) -> None:
        report = """<testsuites><testsuite>
          <testcase classname="test_exec" name="test_pty[80x24]" time="0.5"/>
          <testcase classname="test_files.Large" name="test_read" time="1"><failure message="boom">trace</failure></testcase>
          <testcase classname="test_tcp" name="test_half" time="0"><skipped message="gen 4 has none"/></testcase>
          <testcase classname="" name="test_broken" time="0"><error message="import">trace</error></testcase>
        </testsuite></testsuites>"""
        outcomes = parse_junit(report, "gen4")
        self.assertEqual(
            [(outcome.name, outcome.status.value) for outcome in outcomes],
            [
                ("python/gen4::test_exec::test_pty[80x24]", "passed"),
                ("python/gen4::test_files::Large::test_read", "failed"),
                ("python/gen4::test_tcp::test_half", "skipped"),
                ("python/gen4::test_broken", "failed"),
            ],
        )
        self.assertIn("boom\ntrace", outcomes[1].detail)


class NodeJunit(unittest.TestCase):
    def test_every_case_is_named_by_file_and_words(self) -> None:
        report = """<testsuites>
          <testcase name="a stream, that is cut: CRLF" time="0.5" classname="test"/>
          <testcase name="bad" time="1" classname="test" failure="boom"><failure message="boom">trace</failure></testcase>
          <testcase name="late" time="0" classname="test"><skipped type="skipped" message="why"/></testcase>
          <testcase name="to do" time="0" classname="test"><skipped type="todo"/><failure message="boom"/></testcase>
          <testsuite name="a group" time="1" tests="1"><testcase name="within" time="0" classname="test"/></testsuite>
          <!-- tests 5 -->
        </testsuites>"""
        outcomes = typescript.parse_junit(report, "stream")
        self.assertEqual(
            [(outcome.name, outcome.status.value) for outcome in outcomes],
            [
                ("typescript::stream::a_stream_that_is_cut_CRLF", "passed"),
                ("typescript::stream::bad", "failed"),
                ("typescript::stream::late", "skipped"),
                ("typescript::stream::to_do", "failed"),
                ("typescript::stream::a_group::within", "passed"),
            ],
        )
        self.assertIn("boom\ntrace", outcomes[1].detail)


class Report(unittest.TestCase):
    def test_the_last_line_is_the_summary(self) -> None:
        ledger = Ledger([Outcome("a", Status.PASSED, 0.1), Outcome("b", Status.SKIPPED)], [("unit", 1.0)])
        self.assertEqual(ledger.report().splitlines()[-1], "1 passed, 0 failed, 1 skipped")

    def test_the_slowest_twenty_are_shown(self) -> None:
        ledger = Ledger([Outcome(f"test {number}", Status.PASSED, float(number)) for number in range(30)])
        self.assertIn("test 29\n", ledger.report())
        self.assertNotIn("test 9\n", ledger.report())
