"""`python3 -m suite claude|codex [NAME…]`: runs the tests of an agent, or those whose name has one of these words in it."""

from __future__ import annotations

import importlib
import sys
import unittest

from .report import Report


def main() -> int:
    agent, *words = sys.argv[1:]
    module = importlib.import_module(f".{agent}", __package__)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    tests = [test for group in suite for test in group if not words or any(word in test.id() for word in words)]
    report = Report(sys.stdout)
    for test in tests:
        test.run(report)
    return 0 if tests and report.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
