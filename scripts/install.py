"""Installs the programs, units, completions, manual pages and documents below a prefix, and uninstalls them.

    ./install [--prefix DIR] [--destdir DIR]
    ./install --uninstall [--prefix DIR]
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import artefacts
import pages
import programs

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("carrel", "sandbox-agent")
MANIFEST = Path("share/carrel/installed-files")
UNITS = ("carrel.service", "carrel-sandboxes.service", "carrel-sandboxes.slice")
# Where the units in packaging/ expect the command.
UNIT_PREFIX = "/usr/local/bin/"


class InstallError(Exception):
    """An error with a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass
class Installation:
    """Files below a prefix. Each file is replaced atomically, because a program may be running."""

    prefix: Path
    destdir: Path
    files: list[Path] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)

    def at(self, path: Path) -> Path:
        """The path on this machine of a path below the prefix."""
        return self.destdir / self.prefix.relative_to("/") / path

    def inside(self, path: Path) -> Path:
        """Like `at`, but refuses a path with a link that leads out of the prefix: it may belong to another user."""
        target = self.at(path)
        if not target.parent.resolve().is_relative_to(self.at(Path()).resolve()):
            raise InstallError(f"{target.parent} leads out of {self.prefix}", "replace the link by a directory")
        return target

    def put(self, path: Path, content: bytes, mode: int = 0o644) -> None:
        """Writes a file atomically."""
        self._make_directory(path.parent)
        target = self.inside(path)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".carrel-", delete=False) as new:
            try:
                new.write(content)
                new.flush()
                os.fchmod(new.fileno(), mode)
                os.rename(new.name, target)
            except BaseException:
                os.unlink(new.name)
                raise
        self.files.append(path)

    def _make_directory(self, path: Path) -> None:
        missing = [parent for parent in (path, *path.parents) if not self.at(parent).exists()]
        for parent in reversed(missing):
            # Only the prefix itself may lack more than one parent.
            self.at(parent).mkdir(parents=True)
            self.at(parent).chmod(0o755)
            self.directories.append(parent)

    def finish(self) -> None:
        """Removes files that only the previous version had, and writes the manifest."""
        before = Manifest.read(self)
        for path in before.files:
            if path not in self.files and path != MANIFEST:
                self.inside(path).unlink(missing_ok=True)
        self._make_directory(MANIFEST.parent)
        made = before.directories + [path for path in self.directories if path not in before.directories]
        lines = [f"d {path}" for path in made] + [f"f {path}" for path in sorted([*self.files, MANIFEST])]
        self.put(MANIFEST, "".join(f"{line}\n" for line in lines).encode())


@dataclass
class Manifest:
    """The files and directories of an installation."""

    files: list[Path]
    directories: list[Path]

    @classmethod
    def read(cls, installation: Installation) -> Manifest:
        """Reads the manifest; it is empty if there is none."""
        try:
            lines = installation.at(MANIFEST).read_text().splitlines()
        except FileNotFoundError:
            return cls([], [])
        entries = [(line[:1], Path(line[2:])) for line in lines]
        for _, path in entries:
            if path.is_absolute() or ".." in path.parts:
                raise InstallError(f"{installation.at(MANIFEST)} names {path}", "the file was changed; remove it")
        return cls([path for kind, path in entries if kind == "f"], [path for kind, path in entries if kind == "d"])


# === install ===


def install_programs(target: Installation, built: list[Path]) -> None:
    """The commands, and the helper programs that `carrel` starts."""
    for program in built:
        directory = "bin" if program.name in COMMANDS else "libexec/carrel"
        target.put(Path(directory) / program.name, program.read_bytes(), 0o755)


def install_units(target: Installation) -> None:
    """The systemd units, with the paths of this prefix."""
    for name in UNITS:
        unit = (ROOT / "packaging" / name).read_text().replace(UNIT_PREFIX, f"{target.prefix}/bin/")
        target.put(Path("lib/systemd/system") / name, unit.encode())


def install_completions(target: Installation, command: Path) -> None:
    """Shell completions, in the directories from which shells load them."""
    # Debian has a separate zsh directory for packages.
    zsh = "vendor-completions" if target.prefix == Path("/usr") else "site-functions"
    places = {
        "bash": f"share/bash-completion/completions/{command.name}",
        "zsh": f"share/zsh/{zsh}/_{command.name}",
        "fish": f"share/fish/vendor_completions.d/{command.name}.fish",
    }
    for shell, place in places.items():
        script = subprocess.run([command, "completions", shell], stdout=subprocess.PIPE, check=True).stdout
        target.put(Path(place), script)


def install_manual(target: Installation, command: Path) -> None:
    """Manual pages, one for each command, generated by its `man`."""
    with tempfile.TemporaryDirectory(prefix="carrel-man-") as manual:
        subprocess.run([command, "man", manual], check=True)
        for page in sorted(Path(manual).iterdir()):
            # No time stamp, so that the file is reproducible.
            target.put(Path("share/man/man1") / f"{page.name}.gz", gzip.compress(page.read_bytes(), mtime=0))


def install_documents(target: Installation) -> None:
    """Documents, in share/doc."""
    documents = Path("share/doc/carrel")
    for page, content in pages.installed(ROOT).items():
        target.put(documents / page, content)
    target.put(documents / "copyright", (ROOT / "packaging" / "copyright").read_bytes())


def shipped(directory: Path | None) -> list[Path]:
    """Builds the programs, or finds them in a directory."""
    if directory is None:
        return programs.build_shipped()
    found = [directory / name for name in programs.names()]
    if missing := [path.name for path in found if not path.is_file()]:
        raise InstallError(f"{directory} has no {', '.join(missing)}", "without --programs, ./install builds all programs")
    return found


def install(prefix: Path, destdir: Path, directory: Path | None) -> Installation:
    """Installs everything."""
    built = shipped(directory)
    target = Installation(prefix, destdir)
    try:
        install_programs(target, built)
        install_units(target)
        for command in (program for program in built if program.name in COMMANDS):
            install_completions(target, command)
            install_manual(target, command)
        install_documents(target)
        target.finish()
    except PermissionError as error:
        raise InstallError(f"{error.filename}: permission denied", "run as root, or with --prefix DIR") from error
    return target


# === uninstall ===


def uninstall(prefix: Path, destdir: Path) -> None:
    """Removes what was installed. Sandboxes, images and configuration stay."""
    target = Installation(prefix, destdir)
    manifest = Manifest.read(target)
    if not manifest.files:
        hint = "name the prefix: ./install --uninstall --prefix DIR"
        raise InstallError(f"nothing is installed in {target.at(Path())}", hint)
    if runs_services(target):
        # In this order: stopping the sandboxes needs the daemon.
        for unit in ("carrel-sandboxes.service", "carrel.service"):
            subprocess.run(["systemctl", "disable", "--now", "--quiet", unit], check=False)
    for file in [target.inside(path) for path in manifest.files]:
        file.unlink(missing_ok=True)
    for path in reversed(manifest.directories):
        try:
            # The prefix itself may have been created by the installation; it has no path below itself.
            (target.inside(path) if path.parts else target.at(path)).rmdir()
        except (OSError, InstallError):
            continue
    reload_systemd(target)


def runs_services(target: Installation) -> bool:
    """Whether the running systemd uses the units of this prefix."""
    if not on_systemd(target):
        return False
    command = ["systemctl", "show", "--property=FragmentPath", "--value", "carrel.service"]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    return shown == str(target.at(Path("lib/systemd/system/carrel.service")))


def on_systemd(target: Installation) -> bool:
    """Whether the units are installed for the running systemd."""
    running = Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None
    return running and target.destdir == Path("/") and os.geteuid() == 0


def reload_systemd(target: Installation) -> None:
    """Reloads systemd after units were added or removed."""
    if on_systemd(target):
        subprocess.run(["systemctl", "daemon-reload"], check=False)


# === the command ===


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./install", description="Builds Carrel and installs it on this machine.")
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"), help="installation prefix; default: /usr/local")
    parser.add_argument("--destdir", type=Path, default=Path("/"), help="root directory to install into, for packages")
    add_programs(parser)
    parser.add_argument("--uninstall", action="store_true", help="remove the installed files; sandboxes and images are kept")
    return parser.parse_args()


def add_programs(parser: argparse.ArgumentParser) -> None:
    help = "install the programs in this directory instead of building them"
    parser.add_argument("--programs", type=Path, metavar="DIR", help=help)


def main() -> int:
    given = arguments()
    prefix, destdir = Path(os.path.abspath(given.prefix.expanduser())), Path(os.path.abspath(given.destdir))
    try:
        if given.uninstall:
            uninstall(prefix, destdir)
            print(f"removed from {prefix}; sandboxes and images are kept in CARREL_HOME (/var/lib/carrel for root)")
            return 0
        target = install(prefix, destdir, given.programs)
    except InstallError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return 1
    except artefacts.BuildFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    reload_systemd(target)
    print(f"installed {prefix}/bin/carrel")
    if str(prefix / "bin") not in os.environ.get("PATH", "").split(":"):
        print(f"add it to your path:  export PATH={prefix}/bin:$PATH")
    print("check this host:      carrel doctor")
    print("first sandbox:        carrel run host -- id")
    if on_systemd(target):
        print("start at boot:        systemctl enable --now carrel carrel-sandboxes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
