"""Tests of the archives, modules and reports of the machines."""

import lzma
import subprocess
import tempfile
import unittest
from pathlib import Path

from runner.outcome import Status

from . import machine, report
from .cpio import Archive
from .modules import MissingModule, Modules


class Archives(unittest.TestCase):
    def test_busybox_unpacks_an_archive(self) -> None:
        archive = Archive()
        archive.directory("bin")
        archive.file("bin/program", b"odd", 0o755)
        archive.link("bin/sh", "program")
        with tempfile.TemporaryDirectory() as directory:
            unpack = ["busybox", "cpio", "-i"]
            subprocess.run(unpack, input=archive.finish(), cwd=directory, check=True, capture_output=True, timeout=60)
            program = Path(directory, "bin", "program")
            self.assertEqual((program.read_bytes(), program.stat().st_mode & 0o777), (b"odd", 0o755))
            self.assertEqual(str(Path(directory, "bin", "sh").readlink()), "program")

    def test_every_part_is_aligned_to_four_bytes(self) -> None:
        archive = Archive()
        archive.file("a", b"12345")
        written = archive.finish()
        self.assertEqual((written.index(b"12345") % 4, written.index(b"070701", 6) % 4), (0, 0))


class ModuleOrder(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        (self.directory / "modules.builtin").write_text("kernel/fs/ext4/ext4.ko\n")
        self.put("over-lay.ko", "base,ext4")
        self.put("base.ko.xz", "")

    def put(self, name: str, depends: str) -> None:
        content = b"ELF\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0"
        (self.directory / name).write_bytes(lzma.compress(content) if name.endswith("xz") else content)

    def test_dependencies_of_a_module_come_first_and_once(self) -> None:
        found = Modules(self.directory).in_order(["ext4", "over_lay", "base"])
        self.assertEqual([name for name, _ in found], ["base", "over_lay"])
        self.assertTrue(found[0][1].startswith(b"ELF"), "it is decompressed")

    def test_a_missing_module_is_named(self) -> None:
        with self.assertRaisesRegex(MissingModule, "no module loop"):
            Modules(self.directory).in_order(["loop"])


class PowerCuts(unittest.TestCase):
    def run_until_cut(self, program: str) -> tuple[int, str]:
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory, "output")
            command = ["bash", "-c", machine.UNTIL_CUT, "machine", str(output), "sh", "-c", program, "it", str(output)]
            done = subprocess.run(command, capture_output=True, timeout=60)
            return done.returncode, output.read_text()

    def test_a_machine_that_asks_for_a_power_cut_is_killed(self) -> None:
        code, output = self.run_until_cut('echo "@ cut" >>"$1"; exec sleep 1000')
        self.assertEqual((code, output), (137, "@ cut\n"))

    def test_a_machine_that_does_not_ask_keeps_its_exit_code(self) -> None:
        code, output = self.run_until_cut('echo "@ done" >>"$1"; exit 3')
        self.assertEqual((code, output), (3, "@ done\n"))


GOOD = """noise
@ kernel 6.1.0
@ suite machine plain
running 1 test
test a_b ... ok <0.50s>

failures:

failures:
test result: ok
@ end 0
@ suite cgroup json
{ "type": "suite", "event": "started", "test_count": 1 }
{ "type": "test", "event": "started", "name": "limits" }
"""
END = """{ "type": "test", "name": "limits", "event": "ok", "exec_time": 2.5 }
{ "type": "suite", "event": "ok", "passed": 1 }
@ end 0
@ done
"""


class Reports(unittest.TestCase):
    def outcomes(self, text: str) -> list[tuple[str, Status]]:
        return [(outcome.name, outcome.status) for outcome in report.read(text).outcomes("vm::x")]

    def test_outcomes_are_named_by_machine_and_suite(self) -> None:
        output = report.read(GOOD + END)
        self.assertEqual((output.kernel, output.done), ("6.1.0", True))
        passed = [("vm::x::machine::a_b", Status.PASSED), ("vm::x::cgroup::limits", Status.PASSED)]
        self.assertEqual(self.outcomes(GOOD + END), passed)

    def test_lines_can_end_with_carriage_return(self) -> None:
        self.assertEqual(self.outcomes((GOOD + END).replace("\n", "\r\n")), self.outcomes(GOOD + END))

    def test_an_unfinished_test_has_failed(self) -> None:
        self.assertFalse(report.read(GOOD).done)
        self.assertEqual(self.outcomes(GOOD)[-1], ("vm::x::cgroup::limits", Status.FAILED))

    def test_a_suite_with_an_exit_code_has_failed_even_if_its_tests_passed(self) -> None:
        badly = self.outcomes((GOOD + END).replace("@ end 0\n@ done", "@ end 101\n@ done"))
        self.assertEqual(badly[-1], ("vm::x::cgroup", Status.FAILED))
        self.assertEqual(self.outcomes("@ suite e json\n@ end 127\n"), [("vm::x::e", Status.FAILED)])
