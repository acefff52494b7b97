"""The installed documents."""

import tempfile
import unittest
from pathlib import Path

import install
import pages
import pictures

from . import documents


class Pages(unittest.TestCase):
    ROOT = Path(__file__).parents[2]

    def test_a_link_to_a_file_that_is_not_installed_is_its_text(self) -> None:
        there = [Path("docs/guides/a.md"), Path("docs/b.md"), Path("LICENSE")]
        for text, expected in (
            ("see [b](../b.md#x) and [gone](../../crates/gone.rs)", "see [b](../b.md#x) and gone"),
            ("![b](../b.md) ![gone](gone.svg)", "![b](../b.md) gone"),
            ("[a\nb](../c.md), [`d`](d.md)", "a\nb, `d`"),
            ("[here](#here) [web](https://example.org) [l](../../LICENSE) [docs](..)", None),
            ("`[c](gone.md)`\n```sh\n[c](gone.md)\n```\n[e](gone.md)", "`[c](gone.md)`\n```sh\n[c](gone.md)\n```\ne"),
        ):
            found = pages.without_dead_links(text, Path("docs/guides/a.md"), there)
            self.assertEqual(found, text if expected is None else expected)

    def test_no_link_of_an_installed_document_is_dead(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            for page, content in pages.installed(self.ROOT).items():
                (root / page).parent.mkdir(parents=True, exist_ok=True)
                (root / page).write_bytes(content)
            found = documents.documents(root)
            self.assertGreater(len(found), 20)
            self.assertEqual([line for page in found for line in documents.broken_links(page, root)], [])
            for target in ("docs/guides/run.md", "docs/images/run.svg"):
                self.assertIn(f"({target})", (root / "README.md").read_text())
            self.assertFalse(any((root / page).exists() for page in pages.NOT_INSTALLED))


class Pictures(unittest.TestCase):
    def test_each_part_of_a_line_has_its_column_and_colour(self) -> None:
        parts = pictures.runs("a \x1b[1;31mred\x1b[0m  b\x1b[92m<")
        self.assertEqual(parts, [(0, "#e6edf3", "a "), (2, "#ff7b72", "red"), (5, "#e6edf3", "  b"), (8, "#7ee787", "<")])
        picture = pictures.svg("A & B", ["first", "a \x1b[31m<red>  "])
        self.assertIn("<title>A &amp; B</title>", picture)
        self.assertIn('<text x="32.8" y="50" fill="#ff7b72" textLength="42">&lt;red&gt;</text>', picture)

    def test_a_recording_does_not_tell_when_and_where_it_was_made(self) -> None:
        text = pictures.repeatable("\0web  ready  12s  -\r\n/tmp/x/project\r\n", Path("/tmp/x"))
        self.assertEqual(text, "web  ready  5s   -\n/home/ada/project\n")


class Prefixes(unittest.TestCase):
    def test_an_uninstall_removes_a_prefix_that_the_install_made_and_no_other(self) -> None:
        for made_before, kept in ((False, False), (True, True)):
            with tempfile.TemporaryDirectory() as name:
                there = Path(name) / "opt" / "carrel"
                if made_before:
                    there.mkdir(parents=True)
                target = install.Installation(Path("/opt/carrel"), Path(name))
                target.put(Path("bin/carrel"), b"")
                target.finish()
                self.assertTrue((there / "bin/carrel").exists())
                install.uninstall(target.prefix, target.destdir)
                self.assertEqual(there.exists(), kept)
