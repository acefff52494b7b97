"""`python3 -m suite claude|codex [WORD…]`: runs the tests of an agent, or those whose names contain a word."""

from __future__ import annotations

import importlib
import sys
import unittest
from collections.abc import Iterator

from .report import Report


def flat(suite: unittest.TestSuite, words: list[str]) -> Iterator[unittest.TestCase]:
    """All tests of a suite, recursively, whose names contain one of these words."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test, words)
        elif not words or any(word in test.id().rpartition(".")[2] for word in words):
            yield test


def main() -> int:
    agent, *words = sys.argv[1:]
    module = importlib.import_module(f".{agent}", __package__)
    tests = list(flat(unittest.defaultTestLoader.loadTestsFromModule(module), words))
    report = Report(sys.stdout)
    for test in tests:
        test.run(report)
    return 0 if tests and report.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
