"""Clauses, marks and the pages made from them, on a small repository."""

import tempfile
import unittest
from pathlib import Path

from . import clauses

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
        self.put("kept.md", "")

    def put(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def write_pages(self) -> None:
        for path, text in clauses.render(clauses.load(self.root), clauses.proofs(self.root)).items():
            self.put(str(path), text)

    def problems(self, *passed: str) -> list[str]:
        self.write_pages()
        return clauses.problems(self.root, set(passed) or None)

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
        elsewhere = ["carrel-a::x::tests::it_rises", "carrel-b::y::tests::it_rises"]
        self.assertIn("it_rises did not pass", self.problems(*elsewhere)[0])

    def test_a_suite_may_report_its_tests_without_their_prefix(self) -> None:
        self.put("tests/agents/suite/a.py", PYTHON)
        passed = ["carrel-control::order::tests::it_rises", "agents::claude::it_rises", "python/x::test_y::test_it_rises"]
        self.assertEqual(self.problems(*passed), [])

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
