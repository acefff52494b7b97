"""Which records count."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from . import record

GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
GIT |= {f"GIT_{who}_{what}": "carrel" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class Records(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.root, env=os.environ | GIT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def write(self, commit: str) -> None:
        path = self.root / record.MACHINES
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"commit": commit, "tests": {"vm::good": "passed", "vm::bad": "failed"}}))

    def test_a_record_of_this_history_counts_and_of_another_one_does_not(self) -> None:
        self.git("init", "--quiet", "--initial-branch", "main")
        early = self.commit("early")
        self.git("checkout", "--quiet", "-b", "other")
        other = self.commit("other")
        self.git("checkout", "--quiet", "main")
        for commit in (early, self.commit("late")):
            self.write(commit)
            self.assertEqual(record.passed(self.root), {"vm::good": f"{record.MACHINES} of {commit[:12]}"})
        self.commit("latest")
        for commit in (other, "0" * 40):
            self.write(commit)
            self.assertEqual(record.passed(self.root), {})

    def test_without_a_history_there_is_nothing_to_compare(self) -> None:
        self.write("0" * 40)
        self.assertEqual([*record.passed(self.root)], ["vm::good"])


if __name__ == "__main__":
    unittest.main()
