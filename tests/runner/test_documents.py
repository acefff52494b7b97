"""Documents, `skips.toml`, and the record of the benchmarks."""

import os
import subprocess
import tempfile
import unittest
import uuid
from pathlib import Path

import specification

from . import documents
from .outcome import Ledger, Outcome, Status
from .skips import BadSkips, Skips


class Text(unittest.TestCase):
    def test_blocks_keep_their_words_and_place(self) -> None:
        found = documents.blocks("a\n```sh run\n./quickstart\n```\n\n````md\n```\nx\n```\n````\n")
        self.assertEqual([(block.number, block.info) for block in found], [(2, "sh run"), (6, "md")])
        self.assertEqual(found[0].text, "./quickstart\n")

    def test_links_that_lead_nowhere_are_found(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            document = root / "README.md"
            document.write_text("[a](README.md) [b](gone.md) [c](https://example.org) `[d](code.md)` ![e](e.svg)\n")
            broken = "README.md:1: broken link: "
            self.assertEqual(documents.broken_links(document, root), [f"{broken}gone.md", f"{broken}e.svg"])

    def test_links_to_headings_that_are_not_there_are_found(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            (root / "a.md").write_text("# A `page`: [its](b.md) parts\n```\n# code\n```\n")
            document = root / "README.md"
            document.write_text("## One\n[a](a.md#a-page-its-parts) [b](#one) [c](#two) [d](a.md#code) [e](https://example.org#x)\n")
            wrong = documents.broken_links(document, root)
            self.assertEqual([line.rsplit(" ", 1)[1] for line in wrong], ["#two", "a.md#code"])

    def test_sources_that_are_not_there_are_found(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            (root / "crates/a/src/b").mkdir(parents=True)
            for path in ("lib.rs", "b/c.rs", "b/d.rs"):
                (root / "crates/a/src" / path).touch()
            document = root / "ARCHITECTURE.md"
            document.write_text("`a/src/b/c.rs`, `d.rs` `lib.rs` `a/src/b/{c,d}.rs` `a/src/b/` `c.rs.bak` `x y.rs` `e.rs` `a/f.rs`\n")
            wrong = documents.missing_sources(document, root)
            self.assertEqual([line.rsplit(" ", 1)[1] for line in wrong], ["e.rs", "a/f.rs"])

    def test_a_document_that_is_too_long_is_found(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            (root / "README.md").write_text("line\n" * 150)
            (root / "SPECIFICATION.md").write_text("line\n" * 80)
            (root / "ARCHITECTURE.md").write_text("ä" * 10_000)
            self.assertEqual(documents.too_long(root), [])
            for path in root.iterdir():
                path.write_text(path.read_text() + "x")
            expected = {"README.md has 151 lines; at most 150", "SPECIFICATION.md has 81 lines; at most 80"}
            self.assertEqual(set(documents.too_long(root)), expected | {"ARCHITECTURE.md has 20,001 bytes; at most 20,000"})


class Guides(unittest.TestCase):
    ROOT = Path(__file__).parents[2]

    def test_the_names_that_commands_give_are_found(self) -> None:
        text = (
            '```sh run\n"$carrel" create --label a=b --name one host  # --name two\ncarrel run --id three x\n```\n'
            "`carrel create --name four`\n```sh\nsandbox-agent sessions create five --agent mock\n```\n"
        )
        self.assertEqual(documents.names(text), {"one", "three", "five"})

    def test_no_two_guides_give_the_same_name(self) -> None:
        self.assertEqual(documents.shared_names(self.ROOT), [])

    def test_what_is_pasted_changes_nothing_in_the_shell_of_the_reader(self) -> None:
        self.assertEqual(documents.open_shells(self.ROOT), [])

    def test_what_a_guide_runs_is_what_a_reader_has_installed(self) -> None:
        self.assertEqual(documents.from_sources(self.ROOT), [])

    def test_a_block_that_builds_its_programs_is_found(self) -> None:
        for line in ('built="$(python3 scripts/artefacts.py -p carrel-cli)"', '"$carrel" ls', "target/debug/carrel ls"):
            with tempfile.TemporaryDirectory() as name:
                document = Path(name) / "README.md"
                document.write_text(f"```sh run\n{line}\n```\n```sh\n{line}\n```\n")
                self.assertEqual(documents.from_sources(Path(name)), ["README.md:1: needs a clone of the repository"])

    def test_a_block_finds_the_programs_that_were_built(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            program = Path(name) / "carrel"
            program.write_text("#!/bin/sh\necho built with $CARREL_DOCUMENT\n")
            program.chmod(0o755)
            block = documents.Block(1, "sh run", "carrel ls\n")
            command = documents.command(block, "CARREL_DOCUMENT=mark", program.parent)
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(done.stdout, "built with mark\n")

    def test_a_process_that_is_left_is_found_by_its_environment(self) -> None:
        mark = f"CARREL_DOCUMENT={uuid.uuid4()}"
        name, value = mark.split("=")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(["cat"], env={**os.environ, name: value}, **pipes) as left:
            assert left.stdin is not None and left.stdout is not None
            # Its environment can be read only when it runs.
            left.stdin.write(b"up\n")
            left.stdin.flush()
            left.stdout.readline()
            found = documents.left_behind(mark, timeout=0)
            left.stdin.close()
        self.assertEqual(found, [f"process {left.pid} is still running: cat"])
        self.assertEqual(documents.left_behind(mark), [])


class Listed(unittest.TestCase):
    LIST = '[[skip]]\nname = "python/gen4::*"\nreason = "old"\nruns_in = "the other clients"\n'

    def test_a_skip_is_listed_or_named(self) -> None:
        ledger = Ledger([Outcome("python/gen4::a[x]", Status.SKIPPED), Outcome("other", Status.SKIPPED)])
        self.assertEqual(Skips.parse(self.LIST).unlisted(ledger), ["other"])

    def test_a_line_that_names_no_test_is_named(self) -> None:
        self.assertEqual(Skips.parse(self.LIST).unknown(Ledger()), ["python/gen4::*"])

    def test_a_line_without_a_reason_is_refused(self) -> None:
        with self.assertRaises(BadSkips):
            Skips.parse('[[skip]]\nname = "a"\nruns_in = "full"\n')


class Numbers(unittest.TestCase):
    RECORD = {
        "commit": "0123456789abcdef",
        "dirty": False,
        "date": "2026-01-02",
        "machine": {"processor": "P", "cores": 2, "memory_gib": 24},
        "versions": {"system": "Debian", "kernel": "6", "rustc": "rustc 1.95.0"},
        "benchmarks": [
            {
                "name": "exec",
                "face": "agent client",
                "value": 0.81234,
                "unit": "ms",
                "anchor": {"name": "spawn", "value": 0.5},
                "ratio": 1.62468,
                "aim": "a|b",
                "met": False,
            },
            {"name": "codec", "face": "library", "value": 123456.7, "unit": "MB/s"},
        ],
    }

    def test_the_table_has_a_line_for_each_benchmark(self) -> None:
        lines = specification.table(self.RECORD).splitlines()[-2:]
        self.assertEqual(lines[0], r"| exec | agent client | 0.812 ms | spawn: 0.5 ms | 1.62 | a\|b | **no** |")
        self.assertEqual(lines[1], "| codec | library | 123,457 MB/s | – | – | – | – |")

    def test_the_text_around_the_markers_stays(self) -> None:
        document = f"before\n{specification.BEGIN}\nold\n{specification.END}\nafter\n"
        self.assertEqual(
            specification.with_table(document, "new"),
            f"before\n{specification.BEGIN}\nnew\n{specification.END}\nafter\n",
        )
        with self.assertRaises(ValueError):
            specification.with_table("no markers", "new")
