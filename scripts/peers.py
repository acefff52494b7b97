"""Fetches the published programs that `./bench` measures beside ours: those that `benchmarks/peers` locks."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMED = ("package.json", "package-lock.json", ".npmrc")
INSTALL = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
LIMIT = 600.0
PROGRAMS = "node_modules/@sandbox-agent/*/bin/*"


class NotFetched(Exception):
    """A published program is not here and could not be fetched."""


def fetch(root: Path, cache: Path) -> Path:
    """The directory below which they are, fetched once for each content of the lock, which has their checksums."""
    named = [root / "benchmarks" / "peers" / name for name in NAMED]
    key = hashlib.sha256(b"\0".join(file.read_bytes() for file in named)).hexdigest()[:16]
    directory = cache / "node" / f"peers-{key}"
    complete = directory / "complete"
    if complete.is_file():
        return directory
    print("fetching the published programs that are measured beside ours", file=sys.stderr)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for file in named:
        shutil.copy(file, directory)
    try:
        command = [*INSTALL, f"--cache={cache / 'npm'}"]
        done = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFetched(str(error)) from error
    programs = list(directory.glob(PROGRAMS))
    if done.returncode != 0 or not programs:
        raise NotFetched((done.stderr or done.stdout).strip() or "npm left nothing behind")
    for program in programs:
        # No script of a package is run here, and theirs would have done only this.
        os.chmod(program, 0o755)
    complete.touch()
    return directory
