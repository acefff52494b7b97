"""Runs tests one after the other, and prints a line of JSON for each."""

from __future__ import annotations

import faulthandler
import io
import json
import time
import unittest
from types import TracebackType
from typing import TextIO

# Timeout of a test; its stack is printed before it is killed.
HANGS = 180.0

Error = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class Report(unittest.TestResult):
    """Prints the outcome of each test once, including its subtests and cleanup."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(io.StringIO(), True, 0)
        self._file = file
        self._started = 0.0
        self._status = "passed"
        self._detail = ""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        faulthandler.dump_traceback_later(HANGS, exit=True)
        self._started, self._status, self._detail = time.monotonic(), "passed", ""

    def stopTest(self, test: unittest.TestCase) -> None:
        faulthandler.cancel_dump_traceback_later()
        name = test.id().rpartition(".")[2].removeprefix("test_")
        line = {"name": name, "status": self._status, "seconds": round(time.monotonic() - self._started, 3)}
        print(json.dumps({**line, "detail": self._detail}), file=self._file, flush=True)
        super().stopTest(test)

    def _failed(self, said: list[tuple[unittest.TestCase, str]]) -> None:
        self._status = "failed"
        self._detail += said[-1][1]

    def addError(self, test: unittest.TestCase, err: Error) -> None:
        super().addError(test, err)
        self._failed(self.errors)

    def addFailure(self, test: unittest.TestCase, err: Error) -> None:
        super().addFailure(test, err)
        self._failed(self.failures)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Error | None) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None and err[0] is not None:
            self._failed(self.failures if issubclass(err[0], test.failureException) else self.errors)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._status, self._detail = "skipped", reason
