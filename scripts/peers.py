"""Downloads the published programs that `./bench` compares with: those of the lock file in `benchmarks/peers`."""

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
    """A published program could not be downloaded."""


def fetch(root: Path, cache: Path) -> Path:
    """Returns the directory of the programs. They are downloaded once per version of the lock file, which has their checksums."""
    named = [root / "benchmarks" / "peers" / name for name in NAMED]
    key = hashlib.sha256(b"\0".join(file.read_bytes() for file in named)).hexdigest()[:16]
    directory = cache / "node" / f"peers-{key}"
    complete = directory / "complete"
    if complete.is_file():
        return directory
    print("downloading the published programs to compare with", file=sys.stderr)
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
        raise NotFetched((done.stderr or done.stdout).strip() or "npm installed nothing")
    for program in programs:
        # Install scripts are disabled; that of these packages would only do this.
        os.chmod(program, 0o755)
    complete.touch()
    return directory
