"""`./bench`: builds for release, measures, writes the record and the numbers of `SPECIFICATION.md`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import artefacts
import circumstances
import specification

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = specification.RECORD.stem


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./bench", description="Measures every number of SPECIFICATION.md.")
    parser.add_argument(
        "--name",
        default=REFERENCE,
        help=f"write benchmarks/records/NAME.json; only {REFERENCE}, the default, goes into SPECIFICATION.md",
    )
    parser.add_argument("rest", nargs="*", metavar="-- ARGUMENT", help="passed to the benchmark program")
    return parser.parse_args()


def built(name: str, profile: str, options: list[str]) -> Path:
    """Builds one binary as it is shipped and says where it is."""
    print(f"building {name}", file=sys.stderr)
    made = artefacts.build(["--profile", profile, *options, "--bin", name])
    return next(artefact.executable for artefact in made if artefact.name == name)


def measure(extra: list[str]) -> list[dict[str, object]]:
    """Runs the benchmark program, which prints its own table, and returns its numbers."""
    agentd = built("carrel-agentd", "guest", ["-p", "carrel-agentd"])
    bench = built("bench", "release", ["--manifest-path", str(ROOT / "benchmarks" / "Cargo.toml")])
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as scratch:
        numbers = Path(scratch) / "numbers.json"
        environment = {**os.environ, "CARREL_AGENTD": str(agentd)}
        subprocess.run([bench, "--record", numbers, *extra], cwd=ROOT, env=environment, check=True)
        lines: list[dict[str, object]] = json.loads(numbers.read_text())["benchmarks"]
        return lines


def main() -> int:
    options = arguments()
    try:
        numbers = measure(options.rest)
    except artefacts.BuildFailed as error:
        print(f"error: {error}\nhint: the compiler's message is above", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"error: the benchmarks ended with status {error.returncode}\nhint: nothing was recorded", file=sys.stderr)
        return 1
    path = ROOT / "benchmarks" / "records" / f"{options.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**circumstances.gather(ROOT), "benchmarks": numbers}
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
