"""The environment of a measurement, for the records: commit, machine and versions."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def gather(root: Path) -> dict[str, Any]:
    """The fields that every record begins with."""
    return {
        "commit": _output(["git", "rev-parse", "--verify", "--quiet", "HEAD"], root),
        "dirty": bool(_output(["git", "status", "--porcelain"], root)),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "machine": {
            "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
            "cores": os.cpu_count(),
            "memory_gib": round(int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 1048576),
        },
        "versions": {
            "system": platform.freedesktop_os_release().get("PRETTY_NAME", "Linux"),
            "kernel": platform.release(),
            "rustc": _output(["rustc", "--version"], root),
            "python": platform.python_version(),
        },
    }


def changed_since(root: Path, commit: str | None, paths: list[str]) -> bool:
    """Whether a commit after `commit` touched one of `paths`; true if that is unknown."""
    last = _output(["git", "log", "-1", "--format=%H", "--", *paths], root)
    if last is None or commit is None:
        return last is not None
    ancestor = subprocess.run(
        ["git", "merge-base", "--is-ancestor", last, commit], cwd=root, stderr=subprocess.DEVNULL
    )
    return ancestor.returncode != 0


def is_earlier(root: Path, commit: str) -> bool:
    """Whether a commit belongs to the history of this one, as far as there is a history that could tell."""
    if _output(["git", "rev-parse", "--is-shallow-repository"], root) != "false":
        return True
    ancestor = subprocess.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=root, stderr=subprocess.DEVNULL)
    return ancestor.returncode == 0


def _output(command: list[str], cwd: Path) -> str | None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _field(path: str, name: str) -> str | None:
    with open(path) as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None
