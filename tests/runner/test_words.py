"""The vocabulary check, on a small repository."""

import tempfile
import unittest
from pathlib import Path

from . import words

TOML = """\
[[phrase]]
pattern = "whoever|nobody"
say = "the caller"
unless = '"nobody"'

[types]
most = 1
names = ["Told"]

[modules]
names = ["desk"]

[unchecked]
paths = ["proto/other/", "tests/words.toml"]
pending = []
"""


class Repository(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        self.put("tests/words.toml", TOML)

    def put(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def problems(self, path: str, text: str) -> list[str]:
        self.put(path, text)
        return words.problems(self.root)

    def test_a_word_is_found_in_comments_names_and_documents(self) -> None:
        for path, line in (
            ("crates/a/src/b.rs", "// Whoever asks."),
            ("crates/a/src/b.rs", "fn nobody_waits() {}"),
            ("crates/a/src/b.rs", "let x = WaitsForNobody;"),
            ("docs/a.md", "This is for nobody."),
            ("README.md", "whoever"),
            ("packaging/a.service", "# For nobody."),
            ("packaging/debian/prerm", "# For nobody."),
            ("proto/a.proto", "// For nobody."),
            ("quickstart", "# For nobody."),
        ):
            self.assertEqual(len(self.problems(path, f"first line\n{line}\n")), 1, line)
            self.assertTrue(self.problems(path, f"first line\n{line}\n")[0].startswith(f"{path}:2: "))
            (self.root / path).unlink()

    def test_what_is_no_such_word_passes(self) -> None:
        for line in ('chown("nobody")', "//= promises.images.pull-nobody-waits", "// Nobodyx"):
            self.assertEqual(self.problems("crates/a/src/b.rs", line), [], line)
        self.assertEqual(self.problems("proto/other/a.proto", "whoever"), [])

    def test_ids_of_clauses_and_their_tests_are_not_sentences(self) -> None:
        table, page = "docs/reference/clauses/promises.toml", "docs/reference/promises.md"
        proof = "[nobody_waits](../../tests/nobody.rs)"
        self.assertEqual(self.problems(table, 'waits-for-nobody = "No client waits"'), [])
        self.assertEqual(len(self.problems(table, 'waits-for-nobody = "Nobody waits"')), 1)
        (self.root / table).unlink()
        self.assertEqual(self.problems(page, f"| No client waits | {proof}, {proof} |"), [])
        self.assertEqual(len(self.problems(page, f"| Nobody waits | {proof} |")), 1)
        (self.root / page).unlink()
        self.assertEqual(len(self.problems("docs/a.md", proof)), 1)

    def test_a_type_is_a_noun_and_declared_seldom(self) -> None:
        self.assertEqual(len(self.problems("crates/a/src/b.rs", "pub(crate) struct Told;")), 1)
        self.assertEqual(self.problems("crates/a/src/b.rs", "struct State;"), [])
        problem = self.problems("crates/a/src/c.rs", "enum State {}")[0]
        self.assertIn("declared 2 times", problem)

    def test_a_module_is_not_a_metaphor(self) -> None:
        self.assertEqual(len(self.problems("crates/a/src/desk.rs", "")), 1)
        self.assertEqual(len(self.problems("crates/a/src/desk/calls.rs", "")), 2)
