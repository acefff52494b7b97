"""The shipped programs, and how they are built."""

from __future__ import annotations

import sys
from pathlib import Path

import artefacts

# Pid 1 of a sandbox has its own profile.
SHIPPED = [
    ("release", ["-p", "carrel-cli", "--bin", "carrel", "-p", "carrel-shim", "--bin", "carrel-shim"]),
    ("release", ["-p", "carrel-layers", "--bin", "carrel-unpack"]),
    ("release", ["-p", "carrel-agents", "--bin", "sandbox-agent"]),
    ("guest", ["-p", "carrel-agentd", "--bin", "carrel-agentd"]),
]


def build(profile: str, options: list[str]) -> list[Path]:
    """Builds binaries and returns their paths."""
    print(f"building {', '.join(_binaries(options))}", file=sys.stderr)
    made = artefacts.build(["--profile", profile, *options])
    return [artefact.executable for artefact in made if not artefact.is_test]


def build_shipped() -> list[Path]:
    """Builds all shipped programs."""
    return [program for profile, options in SHIPPED for program in build(profile, options)]


def names() -> list[str]:
    """The names of all shipped programs."""
    return [name for _, options in SHIPPED for name in _binaries(options)]


def _binaries(options: list[str]) -> list[str]:
    return [options[at + 1] for at, word in enumerate(options) if word == "--bin"]
