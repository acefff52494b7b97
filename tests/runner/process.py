"""Runs programs under a watchdog, and kills the processes that they leave running."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Finished:
    """A program that has exited, or was killed by the watchdog."""

    code: int
    timed_out: bool
    seconds: float
    output: str
    errors: str
    left_behind: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out

    def how(self) -> str:
        """A description of how it exited."""
        if self.timed_out:
            return f"stopped by the watchdog after {self.seconds:.0f} s"
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        return f"exit status {self.code}"


class Watchdog:
    """The time limit of the whole run; each program has its own limit as well."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        # Orphans of a test are reparented to us instead of init, so that we can find and kill them.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # SIGCHLD writes a byte here, so that waiting for a child needs no polling.
        self._wakeup, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def remaining(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def run(
        self,
        command: list[str],
        *,
        cwd: Path,
        limit: float,
        env: dict[str, str] | None = None,
        capture_output: bool = True,
        capture_errors: bool = True,
    ) -> Finished:
        """Runs `command` for at most `limit` seconds. Output that is not captured is inherited."""
        # Files instead of pipes: a grandchild that keeps a pipe open must not block us.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            started = time.monotonic()
            try:
                child = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output if capture_output else None,
                    stderr=errors if capture_errors else None,
                    start_new_session=True,
                )
            except OSError as error:
                return Finished(127, False, 0.0, "", f"{command[0]}: {error.strerror}")
            timed_out = False
            try:
                self._wait(child, min(limit, self.remaining()))
            except subprocess.TimeoutExpired:
                timed_out = True
                _end_group(child)
            except BaseException:
                _end_group(child)
                raise
            seconds = time.monotonic() - started
            left_behind = tuple(self._end_orphans())
            output.seek(0)
            errors.seek(0)
            return Finished(
                code=child.returncode,
                timed_out=timed_out,
                seconds=seconds,
                output=output.read().decode(errors="replace"),
                errors=errors.read().decode(errors="replace"),
                left_behind=left_behind,
            )

    def _wait(self, child: subprocess.Popen[bytes], seconds: float) -> None:
        """Waits for `child`, and meanwhile reaps orphans as init does: a test may wait for one to disappear."""
        end = time.monotonic() + seconds
        while child.poll() is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired(child.args, seconds)
            self._next_end(end)
            _reap(besides=child.pid)

    def _next_end(self, latest: float) -> None:
        """Returns when a child has exited, or at `latest`."""
        select.select([self._wakeup], [], [], max(0.0, latest - time.monotonic()))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)

    def _end_orphans(self) -> Iterator[str]:
        """Kills processes that outlived their program, and returns those that did not exit within a second."""
        end = time.monotonic() + 1.0
        _reap()
        while _children() and time.monotonic() < end:
            self._next_end(end)
            _reap()
        # The children of a killed orphan are reparented to us.
        while orphans := _children():
            for pid in orphans:
                yield _command_line(pid)
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Terminates the process group of `child`, and kills it if it does not exit."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=GRACE_SECONDS)
            if number is signal.SIGKILL:
                return


def _reap(besides: int = 0) -> None:
    """Reaps every child that has exited, except `besides`."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == besides:
                return
            os.waitpid(ended.si_pid, 0)


def _children() -> list[int]:
    """Our children. While no program runs, all of them are orphans of earlier ones."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"process {pid}"
    return b" ".join(words).decode(errors="replace").strip()[:120] or f"process {pid}"
