"""Clauses, marks and the pages made from them, on a small repository."""

import tempfile
import unittest
from pathlib import Path
from typing import Any

from . import clauses
from .evidence import Evidence, belongs
from .outcome import Outcome, Status

TOML = """\
[document]
page = "traceability"
order = 1
title = "The control document"

[order]
title = "Order"

[order.clauses]
rises = "The sequence only | rises"
frozen = { text = "A generation is frozen", files = ["kept.md"] }
"""

RUST = """\
mod tests {
    //= control.order.rises
    /// Why.
    #[test]
    #[ignore = "slow"]
    fn it_rises() {}
}
"""

PYTHON = """\
class Suite:
    #= control.order.rises
    @decorated
    def test_it_rises(self): ...
"""

TYPESCRIPT = """\
//= control.order.rises
test("it rises, in JSON", async () => {});
"""


class Repository(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        self.put("docs/reference/clauses/control.toml", TOML)
        self.put("crates/control/src/order.rs", RUST)
        self.put("crates/control/Cargo.toml", '[package]\nname = "carrel-control"\n')
        self.put("kept.md", "# Kept as it is\n")

    def put(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def write_pages(self) -> None:
        for path, text in clauses.render(clauses.load(self.root), clauses.proofs(self.root)).items():
            self.put(str(path), text)

    def problems(self, *passed: str) -> list[str]:
        self.write_pages()
        return clauses.problems(self.root, self.evidence(*passed) if passed else None)

    def evidence(self, *passed: str, **more: Any) -> Evidence:
        outcomes = [Outcome(name, Status.PASSED) for name in passed] + more.pop("outcomes", [])
        return Evidence(self.root, outcomes, **more)

    def test_a_mark_belongs_to_the_test_below_it_in_every_language(self) -> None:
        self.put("tests/agents/suite/a.py", PYTHON)
        self.put("sdk/typescript/test/a.test.ts", TYPESCRIPT)
        tests = {proof.test for proof in clauses.proofs(self.root)}
        self.assertEqual(tests, {"it_rises", "test_it_rises", "it_rises_in_JSON"})

    def test_what_is_proved_and_passed_is_right(self) -> None:
        self.assertEqual(self.problems("carrel-control::order::tests::it_rises"), [])
        self.assertIn(r"The sequence only \| rises", (self.root / clauses.PAGES["traceability"]).read_text())

    def test_a_test_that_did_not_pass_proves_nothing(self) -> None:
        self.assertIn("it_rises did not pass", self.problems("carrel-control::order::tests::another")[0])

    def test_a_test_of_the_same_name_elsewhere_proves_nothing(self) -> None:
        for elsewhere in (
            "carrel-local::order::tests::it_rises",
            "carrel-control::disorder::tests::it_rises",
            "carrel-control/tests/order/main.rs::it_rises",
            "control/plain::order::it_rises",
        ):
            self.assertIn("it_rises did not pass", self.problems(elsewhere)[0], elsewhere)

    def test_the_name_of_a_test_has_the_package_and_the_module_of_its_file(self) -> None:
        self.put("tests/Cargo.toml", '[package]\nname = "carrel-tests"\n')
        self.put("tests/skew/main.rs", "")
        for path, name, is_its in (
            ("crates/control/src/lib.rs", "carrel-control::tests::it", True),
            ("crates/control/src/wait/tests.rs", "carrel-control::wait::tests::it", True),
            ("crates/control/src/wait/mod.rs", "carrel-control::wait::tests::it", True),
            ("crates/control/src/wait.rs", "carrel-control::await::tests::it", False),
            ("crates/control/tests/flow.rs", "carrel-control/tests/flow.rs::it", True),
            ("crates/control/tests/flow.rs", "carrel-control::flow::it", False),
            ("crates/control/tests/life/time.rs", "carrel-control/tests/life/main.rs::time::it", True),
            ("crates/control/tests/life/time.rs", "carrel-control/tests/life/main.rs::it", False),
            ("crates/control/tests/life/time.rs", "carrel-control/tests/death/main.rs::time::it", False),
            ("tests/skew/shim/previous.rs", "carrel-tests/skew/shim/main.rs::previous::it", True),
            ("tests/skew/features.rs", "vm::bookworm::skew::features::it", True),
            ("tests/skew/features.rs", "vm::bookworm::skew::it", False),
            ("tests/skew/features.rs", "vm::bookworm::relay::features::it", False),
            ("tests/conformance/control/test_a.py", "control/plain::test_a::test_it[0-a::b]", True),
            ("tests/conformance/control/test_a.py", "control/plain::test_b::test_it", False),
            ("tests/conformance/control/test_a.py", "python/gen4::test_a::test_it", False),
            ("tests/agents/suite/claude.py", "agents::claude::it", True),
            ("tests/agents/suite/claude.py", "agents::codex::it", False),
            ("tests/agents/suite/scenarios.py", "agents::codex::it", True),
            ("tests/runner/test_a.py", "runner::test_a::Suite::test_it", True),
            ("sdk/typescript/test/a.test.ts", "typescript::a::it", True),
            ("sdk/typescript/test/a.test.ts", "typescript::b::it", False),
        ):
            self.assertEqual(belongs(self.root, Path(path), name), is_its, (path, name))

    def test_a_suite_may_report_its_tests_without_their_prefix(self) -> None:
        self.put("tests/agents/suite/claude.py", PYTHON)
        passed = ["carrel-control::order::tests::it_rises", "agents::claude::it_rises", "python/x::test_y::test_it_rises"]
        self.assertEqual(self.problems(*passed), [])

    def test_every_client_that_ran_a_test_has_to_pass_it(self) -> None:
        self.put("tests/conformance/control/test_a.py", "#= control.order.rises\ndef test_it_rises(): ...\n")
        passed = ["carrel-control::order::tests::it_rises", "control/plain::test_a::test_it_rises[0]"]
        self.assertEqual(self.problems(*passed), [])
        self.write_pages()
        for status in (Status.FAILED, Status.SKIPPED):
            outcomes = [Outcome("control/sdk::test_a::test_it_rises[1]", status)]
            wrong = clauses.problems(self.root, self.evidence(*passed, outcomes=outcomes))
            self.assertEqual(wrong, ["tests/conformance/control/test_a.py:1: test_it_rises did not pass"], status)

    def test_a_record_counts_for_stages_that_were_left_out_and_for_nothing_else(self) -> None:
        self.put("tests/Cargo.toml", '[package]\nname = "carrel-tests"\n')
        self.put("tests/relay/main.rs", RUST)
        self.write_pages()
        here, there = "carrel-control::order::tests::it_rises", "vm::bookworm::relay::tests::it_rises"
        recorded = {there: "vm.json of 0123", here: "full.json of 0123"}
        known = self.evidence(here, recorded=recorded)
        self.assertEqual(clauses.problems(self.root, known), [])
        self.assertEqual(known.notes, {"marks that stand on vm.json of 0123": ["tests/relay/main.rs: it_rises"]})
        # The runner's own tests of that stage are not the stage.
        self.assertEqual(clauses.problems(self.root, self.evidence(here, "vm::test_vm::it", recorded=recorded)), [])
        for outcomes in ([here, "vm::bookworm::relay::another"], [there]):
            self.assertEqual(len(clauses.problems(self.root, self.evidence(*outcomes, recorded=recorded))), 1, outcomes)

    def test_a_listed_skip_is_noted_and_any_other_fails(self) -> None:
        self.write_pages()
        skipped = Outcome("carrel-control::order::tests::it_rises", Status.SKIPPED)
        listed = self.evidence(outcomes=[skipped], is_listed=lambda name: True)
        self.assertEqual(clauses.problems(self.root, listed), [])
        self.assertEqual([*listed.notes.values()], [["crates/control/src/order.rs: it_rises"]])
        self.assertEqual(len(clauses.problems(self.root, self.evidence(outcomes=[skipped]))), 1)

    def test_a_line_that_is_almost_a_mark_is_named(self) -> None:
        for line in ("//= control.order.rises and more", "///= control.order.rises", "#= ", "// = control.order.rises"):
            self.put("crates/control/src/other.rs", f"{line}\n#[test]\nfn other() {{}}\n")
            self.assertEqual(self.problems(), ["crates/control/src/other.rs:1: this is no mark"], line)

    def test_a_heading_that_is_gone_is_named(self) -> None:
        self.put("docs/reference/clauses/control.toml", TOML.replace('"kept.md"', '"kept.md#kept-as-it-is", "kept.md#gone"'))
        self.assertEqual(self.problems(), ["control.order.frozen: there is no heading kept.md#gone"])

    def test_an_unknown_clause_is_named_with_its_line(self) -> None:
        self.put("crates/control/src/other.rs", "//= control.order.none\n#[test]\nfn other() {}\n")
        self.assertEqual(self.problems(), ["crates/control/src/other.rs:1: there is no clause control.order.none"])

    def test_a_mark_above_no_test_is_named(self) -> None:
        self.put("crates/control/src/other.rs", "//= control.order.rises\nlet x = 1;\nfn other() {}\n")
        self.assertEqual(self.problems(), ["crates/control/src/other.rs:1: no test follows the mark"])

    def test_a_clause_that_nothing_proves_is_named(self) -> None:
        self.put("crates/control/src/order.rs", "")
        self.assertEqual(self.problems(), ["control.order.rises: nothing proves this clause"])

    def test_a_file_that_is_gone_is_named(self) -> None:
        (self.root / "kept.md").unlink()
        self.assertEqual(self.problems(), ["control.order.frozen: there is no file kept.md"])

    def test_a_page_that_is_old_is_named(self) -> None:
        self.write_pages()
        self.put("docs/reference/clauses/control.toml", TOML.replace("Order", "Sequence"))
        self.assertIn("docs/reference/traceability.md is not what", clauses.problems(self.root)[0])


if __name__ == "__main__":
    unittest.main()
