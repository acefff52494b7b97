"""`./bench`: makes a release build, measures, and writes the record and the table of `docs/reference/benchmarks.md`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import artefacts
import environment
import peers
import programs
import specification

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = specification.RECORD.stem


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./bench", description="Measures every number of docs/reference/benchmarks.md.")
    parser.add_argument(
        "--name",
        default=REFERENCE,
        help=f"write benchmarks/records/NAME.json; only the record {REFERENCE}, the default, updates the document",
    )
    parser.add_argument("--full", action="store_true", help="1,000 idle sandboxes at the same time instead of 100")
    parser.add_argument("rest", nargs="*", metavar="-- ARGUMENT", help="passed to the benchmark program")
    return parser.parse_args()


BENCH = ["--manifest-path", str(ROOT / "benchmarks" / "Cargo.toml"), "--bin", "bench"]
PEERS = ["bwrap", "runc", "busybox", "podman", "umoci"]
# The suites that need a published program to compare with.
FETCHED = "agents"


def fetched(extra: list[str]) -> dict[str, str]:
    """The environment variable with the path of the published programs, if a selected suite needs them."""
    suites = [word for word in extra if not word.startswith("-") and not word.isdigit()]
    if suites and not any(suite.startswith(FETCHED) for suite in suites):
        return {}
    return {"CARREL_PEERS": str(peers.fetch(ROOT, Path(os.environ["CARREL_CACHE"])))}


def measure(extra: list[str]) -> list[dict[str, object]]:
    """Runs the benchmark program, which prints its own table, and returns its numbers."""
    found = fetched(extra)
    shipped = programs.build_shipped()
    (bench,) = programs.build("release", BENCH)
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as scratch:
        # The programs look for each other in one directory, but cargo has a directory for each profile.
        for program in shipped:
            shutil.copy(program, scratch)
        numbers = Path(scratch) / "numbers.json"
        variables = {**os.environ, **found, "CARREL_LIBEXEC": scratch}
        subprocess.run([bench, "--record", numbers, *extra], cwd=ROOT, env=variables, check=True)
        lines: list[dict[str, object]] = json.loads(numbers.read_text())["benchmarks"]
        return lines


def versions() -> dict[str, str]:
    """The versions of the programs that we compare with."""
    said = {}
    for peer in PEERS:
        # busybox has no --version: it prints its help, which begins with the version.
        done = subprocess.run([peer, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        said[peer] = next(iter((done.stdout or done.stderr).splitlines()), "")
    return said


def main() -> int:
    options = arguments()
    try:
        numbers = measure([*(["--full"] if options.full else []), *options.rest])
    except peers.NotFetched as error:
        print(f"error: the published agents servers could not be downloaded: {error}", file=sys.stderr)
        print("hint: npm needs its registry once; `./bench -- SUITE` measures other suites without it", file=sys.stderr)
        return 1
    except artefacts.BuildFailed as error:
        print(f"error: {error}\nhint: the compiler's message is above", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"error: the benchmarks exited with status {error.returncode}\nhint: nothing was recorded", file=sys.stderr)
        return 1
    path = ROOT / "benchmarks" / "records" / f"{options.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    measured = environment.gather(ROOT)
    content = {**measured, "versions": {**measured["versions"], **versions()}, "benchmarks": numbers}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path.relative_to(ROOT)}")
    if options.name == REFERENCE and not options.rest:
        specification.write(ROOT)
        print(f"written: the numbers of {specification.DOCUMENT}")
    missed = [str(line["name"]) for line in numbers if line.get("met") is False]
    if missed:
        print(f"aims not met: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
