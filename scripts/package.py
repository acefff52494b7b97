"""Writes a Debian package: the files that ./install installs below /usr, and the scripts of packaging/debian.

    ./package [--output DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import artefacts
import install

# The programs are static, so the package has no dependencies.
CONTROL = """\
Package: carrel
Version: {version}
Architecture: {architecture}
Maintainer: the authors of Carrel <carrel@localhost>
Installed-Size: {size}
Section: admin
Priority: optional
Recommends: ca-certificates
Suggests: runsc
Description: sandboxes for AI agents and other commands (preview)
 Runs commands and coding agents in ephemeral and persistent sandboxes: Linux
 namespaces with their own root file system, limits and system-call filter. A
 daemon keeps persistent sandboxes and a durable log of their events, and
 answers gRPC.
 .
 This is a preview: before 1.0, anything may change between minor versions.
 From 1.0 on, versions follow semantic versioning, and within a major version
 the wire protocols and the store change by additions only.
"""


def version() -> str:
    """The version of the workspace."""
    manifest = tomllib.loads((install.ROOT / "Cargo.toml").read_text())
    return str(manifest["workspace"]["package"]["version"])


def architecture() -> str:
    done = subprocess.run(["dpkg", "--print-architecture"], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def commit_time() -> int:
    """The time of the commit, so that packages of one commit are identical."""
    command = ["git", "-C", str(install.ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def checksums(tree: Path) -> str:
    """The contents of `md5sums`, which `dpkg --verify` reads."""
    lines = []
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        lines.append(f"{digest}  {path.relative_to(tree)}\n")
    return "".join(lines)


def write(output: Path, given_version: str, programs: Path | None) -> Path:
    """Builds the programs and writes the package."""
    with tempfile.TemporaryDirectory(prefix="carrel-package-") as scratch:
        tree = Path(scratch) / "tree"
        tree.mkdir(mode=0o755)
        installation = install.install(Path("/usr"), tree, programs)
        # The package manager keeps its own list of files.
        listed = installation.at(install.MANIFEST)
        listed.unlink()
        listed.parent.rmdir()
        size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
        control = tree / "DEBIAN"
        sums = checksums(tree)
        control.mkdir(mode=0o755)
        (control / "md5sums").write_text(sums)
        fields = {"version": given_version, "architecture": architecture(), "size": size}
        (control / "control").write_text(CONTROL.format(**fields))
        for script in sorted((install.ROOT / "packaging" / "debian").iterdir()):
            shutil.copy(script, control)
            (control / script.name).chmod(0o755)
        output.mkdir(parents=True, exist_ok=True)
        package = output / f"carrel_{given_version}_{fields['architecture']}.deb"
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(package)]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        return package


def main() -> int:
    parser = argparse.ArgumentParser(prog="./package", description="Builds Carrel and writes a Debian package of it.")
    parser.add_argument("--output", type=Path, default=Path("."), help="output directory; default: the current one")
    parser.add_argument("--version", default=version(), help=f"default: {version()}")
    install.add_programs(parser)
    given = parser.parse_args()
    try:
        package = write(given.output, given.version, given.programs)
    except install.InstallError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return 1
    except artefacts.BuildFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {package}")
    print(f"install it with:  sudo apt install {package if package.is_absolute() else f'./{package}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
