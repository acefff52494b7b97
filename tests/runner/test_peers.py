"""The download of the published programs that `./bench` compares with."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import peers

# Stands in for npm: counts its calls, and fails while it is to have no network.
NPM = """#!/bin/sh
echo call >>"$CALLS"
[ ! -e "$OFFLINE" ] || { echo 'npm error: no network' >&2; exit 1; }
mkdir -p node_modules/@sandbox-agent/cli/bin && echo program >node_modules/@sandbox-agent/cli/bin/sandbox-agent
"""


class Fetching(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root, self.cache = Path(scratch.name) / "root", Path(scratch.name) / "cache"
        self.calls, self.offline = Path(scratch.name) / "calls", Path(scratch.name) / "offline"
        (self.root / "benchmarks" / "peers").mkdir(parents=True)
        for name in peers.NAMED:
            (self.root / "benchmarks" / "peers" / name).write_text(name)
        npm = Path(scratch.name) / "bin" / "npm"
        npm.parent.mkdir()
        npm.write_text(NPM)
        npm.chmod(0o755)
        path = f"{npm.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "CALLS": str(self.calls), "OFFLINE": str(self.offline)}
        patched = mock.patch.dict(os.environ, environment)
        patched.start()
        self.addCleanup(patched.stop)

    def fetch(self) -> Path:
        return peers.fetch(self.root, self.cache)

    def fetches(self) -> int:
        return len(self.calls.read_text().splitlines())

    def test_a_program_is_fetched_once_for_each_content_of_the_lock(self) -> None:
        first = self.fetch()
        self.assertTrue(os.access(first / "node_modules/@sandbox-agent/cli/bin/sandbox-agent", os.X_OK))
        self.assertEqual((self.fetch(), self.fetches()), (first, 1))
        (self.root / "benchmarks" / "peers" / "package-lock.json").write_text("another version")
        self.assertNotEqual(self.fetch(), first)
        self.assertEqual(self.fetches(), 2)

    def test_what_was_not_fetched_is_reported_and_retried(self) -> None:
        self.offline.touch()
        with self.assertRaisesRegex(peers.NotFetched, "no network"):
            self.fetch()
        self.offline.unlink()
        self.fetch()
        self.assertEqual(self.fetches(), 2)
