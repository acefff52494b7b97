"""The watchdog, on real processes."""

import sys
import unittest
from pathlib import Path

from .process import Finished, Watchdog


class Processes(unittest.TestCase):
    def run_python(self, code: str, limit: float = 30.0) -> Finished:
        return Watchdog(60.0).run([sys.executable, "-c", code], cwd=Path("/"), limit=limit)

    def test_output_and_status_are_kept_apart(self) -> None:
        done = self.run_python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
        self.assertEqual((done.code, done.output, done.errors, done.how()), (3, "out\n", "err\n", "exit status 3"))

    def test_a_signal_is_named(self) -> None:
        self.assertEqual(self.run_python("import os; os.abort()").how(), "killed by SIGABRT")

    def test_a_program_that_hangs_is_ended_with_its_group(self) -> None:
        done = self.run_python("import subprocess; subprocess.run(['sleep', '1000'])", limit=0.5)
        self.assertTrue(done.timed_out)
        self.assertFalse(done.ok)

    def test_a_process_that_left_the_group_is_found_and_ended(self) -> None:
        code = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
        done = self.run_python(code)
        self.assertTrue(done.ok)
        self.assertEqual(done.left_behind, ("sleep 1000",))

    def test_an_orphan_that_ends_is_gone_before_its_parent_is(self) -> None:
        code = """
import os, subprocess, sys, time
middle = "import subprocess, sys; print(subprocess.Popen(['true'], start_new_session=True).pid)"
pid = int(subprocess.run([sys.executable, '-c', middle], stdout=subprocess.PIPE).stdout)
deadline = time.monotonic() + 20
while os.path.exists(f'/proc/{pid}') and time.monotonic() < deadline:
    time.sleep(0.01)
print(os.path.exists(f'/proc/{pid}'))
"""
        done = self.run_python(code)
        self.assertEqual((done.output, done.left_behind), ("False\n", ()))

    def test_a_program_that_is_not_there_is_an_outcome(self) -> None:
        done = Watchdog(60.0).run(["/no/such/program"], cwd=Path("/"), limit=1.0)
        self.assertEqual(done.code, 127)

    def test_nothing_runs_once_the_whole_run_is_over(self) -> None:
        done = Watchdog(0.0).run(["sleep", "1000"], cwd=Path("/"), limit=1000.0)
        self.assertTrue(done.timed_out)
