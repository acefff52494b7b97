"""The stages of `./test`, in their order: what each runs, and under which names it is counted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import artefacts
import deny
import specification
from vm.stage import Machines

from . import clauses, documents, evidence, record, reference, rust, words
from .agents import PublishedAgents
from .foreign import CLIENTS, CONTROL_CLIENTS, ForeignClients
from .outcome import Ledger, Outcome, Status
from .process import Finished, Watchdog
from .skips import Skips
from .typescript import TypeScript

MINUTE = 60.0
# The crates that others may build on.
PUBLIC = ("carrel-protocol", "carrel-agent-client", "carrel-agents")


@dataclass
class Run:
    """One run of `./test`."""

    root: Path
    full: bool
    ledger: Ledger
    watchdog: Watchdog
    skips: Skips
    cache: Path
    built: list[artefacts.Artefact] = field(default_factory=list)

    # === checks ===

    def check(self, name: str, problems: Callable[[], list[str]]) -> None:
        """Counts a check of our own, which returns what is wrong."""
        wrong = problems()
        self.ledger.add(Outcome(name, Status.FAILED if wrong else Status.PASSED, None, "\n".join(wrong)))
        if not wrong:
            print(f"  ok     {name}", flush=True)

    def command(self, name: str, command: list[str], limit: float, capture_output: bool = False) -> Finished:
        """Counts a program as passed when it exits with 0; what it says goes where ours goes."""
        done = self.watchdog.run(
            command, cwd=self.root, limit=limit, capture_output=capture_output, capture_errors=False
        )
        status = Status.PASSED if done.ok else Status.FAILED
        self.ledger.add(Outcome(name, status, None, f"{done.how()}: {' '.join(command)[:200]}"))
        if done.ok:
            print(f"  ok     {name}  {done.seconds:.1f} s", flush=True)
        return done

    # === stages ===

    def runner(self) -> None:
        """The runner's own parsing, before its word is taken for anything else."""
        command = [sys.executable, "-m", "unittest", "discover", "-v", "-s", "tests", "-t", "tests"]
        env = {"PYTHONPATH": str(self.root / "scripts")}
        done = self.watchdog.run(command, cwd=self.root, limit=5 * MINUTE, env=env)
        passed = re.findall(r"^test_\w+ \(((?:agents|runner|vm)\.[\w.]+)\) \.\.\. ok$", done.errors, re.MULTILINE)
        for name in passed:
            self.ledger.add(Outcome(name.replace(".", "::"), Status.PASSED))
        if not passed or not done.ok:
            self.ledger.add(Outcome("runner", Status.FAILED, done.seconds, f"{done.how()}\n{done.errors}"))
        print(f"  {len(passed):5} tests  {done.seconds:7.1f} s  the runner itself", flush=True)

    def lint(self) -> None:
        plain = ["--", "--color", "never"]
        self.command("lint::fmt", ["cargo", "fmt", "--all", "--check", *plain], 2 * MINUTE)
        clippy = ["cargo", "clippy", "--workspace", "--all-targets", "--locked", "--quiet"]
        self.command("lint::clippy", [*clippy, "--", "-D", "warnings"], 30 * MINUTE)
        public = ["cargo", "doc", "--no-deps", "--locked", "--quiet", *(f"--package={name}" for name in PUBLIC)]
        self.command("lint::doc", ["env", "RUSTDOCFLAGS=-D warnings", *public], 10 * MINUTE)
        benchmarks = self.root / "benchmarks" / "Cargo.toml"
        if benchmarks.is_file():
            of_benchmarks = ["--manifest-path", str(benchmarks)]
            self.command("lint::fmt_benchmarks", ["cargo", "fmt", *of_benchmarks, "--check", *plain], 2 * MINUTE)
            self.command("lint::clippy_benchmarks", [*clippy, *of_benchmarks, "--", "-D", "warnings"], 30 * MINUTE)
        self.check("lint::dependencies", lambda: deny.check(self.root, self.ledger.note))
        self.check("lint::links", self._links)
        self.check("lint::lengths", lambda: documents.too_long(self.root))
        self.check("lint::sources", self._sources)
        self.check("lint::reference", lambda: reference.problems(self.root))
        self.check("lint::clauses", lambda: clauses.problems(self.root))
        self.check("lint::words", lambda: words.problems(self.root))
        self.check("lint::specification", lambda: specification.check(self.root, self.ledger.note))
        self._long_files()

    def build(self) -> None:
        self.built = self._build("build::workspace", ["--workspace", "--lib", "--bins", "--tests", "--examples"])
        # The agent once more, as it is shipped: its size and what it costs when idle are promises too.
        guest = self._build("build::guest", ["--profile", "guest", "-p", "carrel-agentd"])
        agents = [self._program(build, "carrel-agentd") for build in (self.built, guest)]
        carrel = self._program(self.built, "carrel")
        if not all(agents) or not carrel:
            self.ledger.add(Outcome("build::programs", Status.FAILED, None, "the build made not all of the programs"))
            return
        rust.test_environment(agents[0], agents[1], carrel, self.full)

    def _build(self, name: str, arguments: list[str]) -> list[artefacts.Artefact]:
        metadata = subprocess.run(
            artefacts.metadata_command(arguments), cwd=self.root, stdout=subprocess.PIPE, check=True, timeout=600
        )
        done = self.command(name, artefacts.build_command(arguments), 40 * MINUTE, capture_output=True)
        if not done.ok:
            return []
        by_id = artefacts.packages(json.loads(metadata.stdout))
        return artefacts.parse_messages(done.output.splitlines(), by_id)

    @staticmethod
    def _program(built: list[artefacts.Artefact], name: str) -> Path | None:
        return next((made.executable for made in built if made.name == name and not made.is_test), None)

    def unit(self) -> None:
        self._rust(lambda made: not self._is_real(made), 10 * MINUTE, 60 * MINUTE)
        if self.built:
            rust.documentation_tests(self.ledger, self.watchdog, self.root, 20 * MINUTE)

    def real(self) -> None:
        self._rust(self._is_real, 20 * MINUTE, 120 * MINUTE)

    def soak(self) -> None:
        """A random workload under faults: seconds of it always, half an hour with `--full`, which leaves a record."""
        carrel = self._program(self.built, "carrel")
        if carrel is None:
            self.ledger.add(Outcome("soak", Status.FAILED, None, "the build made no carrel"))
            return
        seconds = 30 * MINUTE if self.full else 30.0
        command = [sys.executable, "-m", "soak", str(carrel), str(seconds)]
        env = {"PYTHONPATH": str(self.root / "tests")}
        done = self.watchdog.run(command, cwd=self.root, limit=seconds + 15 * MINUTE, env=env)
        status = Status.PASSED if done.ok else Status.FAILED
        outcome = Outcome("soak::faults", status, done.seconds, f"{done.how()}\n{done.errors}")
        self.ledger.add(outcome)
        print(f"  soak  {done.seconds:7.1f} s  {done.output.strip()}", flush=True)
        if self.full and done.ok:
            written = record.write_soak(self.root, outcome, json.loads(done.output))
            print(f"  written: {written.relative_to(self.root)}", flush=True)

    def foreign(self) -> None:
        limit = (60 if self.full else 15) * MINUTE
        for name, clients in (("python", CLIENTS), ("control", CONTROL_CLIENTS)):
            suite = self.root / "tests" / "conformance" / name
            if self.built:
                ForeignClients(self.ledger, self.watchdog, suite, self.cache, limit, clients).run()
        package = self.root / "sdk" / "typescript"
        if self.built:
            server = self._program(self.built, "sandbox-agent")
            TypeScript(self.ledger, self.watchdog, package, self.cache, limit, server).run()

    def agents(self) -> None:
        """The published coding agents behind the server that was built, with a stand-in for their models."""
        program = self._program(self.built, "sandbox-agent")
        if program is None:
            self.ledger.add(Outcome("agents", Status.FAILED, None, "the build made no sandbox-agent"))
            return
        place = self.root / "tests" / "agents"
        PublishedAgents(self.ledger, self.watchdog, place, program, self.cache, 15 * MINUTE).run()

    def docs(self) -> None:
        """The blocks `sh run` of the documents, as a reader runs them: what was built is on `PATH`."""
        carrel = self._program(self.built, "carrel")
        if carrel is None:
            self.ledger.add(Outcome("docs", Status.FAILED, None, "the build made no carrel"))
            return
        for document in documents.documents(self.root):
            for block in documents.blocks(document.read_text()):
                if block.info.split() == ["sh", "run"]:
                    name = f"docs::{document.relative_to(self.root)}:{block.number}"
                    mark = f"CARREL_DOCUMENT={uuid.uuid4()}"
                    self.command(name, documents.command(block, mark, carrel.parent), 15 * MINUTE)
                    self.check(f"{name}::leaves_nothing", lambda mark=mark: documents.left_behind(mark))

    def vm(self) -> None:
        """What the kernel at hand cannot show, on Debian's kernels; only with `--full`, for nothing speeds them up."""
        before = len(self.ledger.outcomes)
        machines = Machines(self.ledger, self.watchdog, self.root, self.cache, self.built, 30 * MINUTE)
        kernels = machines.run()
        if self.full:
            written = record.write_machines(self.root, self.ledger.outcomes[before:], kernels)
            print(f"  written: {written.relative_to(self.root)}", flush=True)

    def package(self) -> None:
        """`./install`, and two versions of the Debian package on a bare system: used, upgraded, removed, purged."""
        if os.geteuid() != 0:
            why = "a bare system can only be made as root"
            self.ledger.add(Outcome("package::lifecycle", Status.SKIPPED, None, why))
            return
        carrel = self._program(self.built, "carrel")
        if carrel is None:
            self.ledger.add(Outcome("package::lifecycle", Status.FAILED, None, "the build made no carrel"))
            return
        self.command("package::install", ["tests/package/install.sh", str(carrel.parent)], 5 * MINUTE)
        with tempfile.TemporaryDirectory(prefix="carrel-packages-") as packages:
            for version in ("1.0.0", "1.0.1"):
                # The programs of this run, hardly compressed: what is shipped is the same, and smaller.
                package = ["env", "DPKG_DEB_COMPRESSOR_LEVEL=0", "./package", "--programs", str(carrel.parent)]
                options = ["--output", packages, "--version", version]
                self.command(f"package::build_{version}", [*package, *options], 15 * MINUTE)
            inside = [f"/with/{package}" for package in sorted(os.listdir(packages))]
            fresh = ["bash", "scripts/fresh.sh", "--with", packages, "trixie"]
            self.command("package::lifecycle", [*fresh, "/carrel/tests/package/lifecycle.sh", *inside], 15 * MINUTE)

    def fresh(self) -> None:
        """The promise of the README on systems that have nothing; only with `--full`, for it installs a Debian each."""
        for suite in ("bookworm", "trixie"):
            self.command(f"fresh::{suite}", ["bash", "scripts/fresh.sh", suite], 30 * MINUTE)

    def close(self) -> None:
        """What can be said only when every stage has run: skips, and the clauses that tests prove."""
        self.check("skips::every_line_names_a_test", lambda: self.skips.unknown(self.ledger))
        is_listed = lambda name: self.skips.runs_in(name) is not None  # noqa: E731
        proof = evidence.Evidence(self.root, self.ledger.outcomes, record.passed(self.root), is_listed)
        self.check("docs::clauses", lambda: clauses.problems(self.root, proof))
        for why, what in proof.notes.items():
            self.ledger.note(f"{len(what)} {why}: {'; '.join(sorted(what))}")

    # === parts of stages ===

    def _rust(self, wanted: Callable[[artefacts.Artefact], bool], always: float, full: float) -> None:
        bounds = rust.Bounds(10_000, 600, full) if self.full else rust.Bounds(256, 5, always)
        tests = rust.RustTests(self.ledger, self.watchdog, bounds, self.skips, self.full)
        for made in sorted(self.built, key=lambda made: (made.package, made.kind, made.name)):
            if made.is_test and wanted(made):
                tests.run(made)

    def _is_real(self, made: artefacts.Artefact) -> bool:
        return made.directory.is_relative_to(self.root / "tests")

    def _links(self) -> list[str]:
        found = documents.documents(self.root)
        return [problem for document in found for problem in documents.broken_links(document, self.root)]

    def _sources(self) -> list[str]:
        named = [self.root / "ARCHITECTURE.md", self.root / "CONTRIBUTING.md", *self.root.glob("crates/*/README.md")]
        return [problem for document in sorted(named) for problem in documents.missing_sources(document, self.root)]

    def _long_files(self) -> None:
        for source in sorted((self.root / "crates").rglob("*.rs")):
            if (lines := len(source.read_text().splitlines())) > 600:
                self.ledger.note(f"{source.relative_to(self.root)} has {lines} lines: it is two ideas")
