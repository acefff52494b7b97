"""Builds what a machine boots from: the archive that the kernel unpacks, and a disk with the programs under test.

The disk is ext4, and not a file system in memory: the layers of an image have to be on one whose mounts can map ids.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .cpio import Archive
from .modules import Modules

GUEST = Path(__file__).resolve().parent / "guest"
# The last one is for the quotas of persistent disks.
MODULES = ("virtio_pci", "virtio_blk", "ext4", "overlay", "loop", "quota_v2")
DISK_BYTES = 2 << 30
# Links into `usr`, as Debian has them.
MERGED = ("bin", "sbin", "lib", "lib64")
DIRECTORIES = ("proc", "sys", "dev", "run", "tmp", "root", "home", "mnt", "var/tmp", "var/lib", "etc", "opt/tests")
# Programs of the tests that busybox does not have or implements differently, and a shell that runs them instead of applets.
PROGRAMS = ("/usr/sbin/mkfs.ext4", "/usr/bin/install", "/usr/bin/head", "/usr/bin/dash", "/usr/bin/python3")
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1\tlocalhost\n",
}


OURS = ("carrel", "carrel-shim", "carrel-agentd", "carrel-unpack")
# The shipped units, and those that are started at boot.
UNITS = ("carrel.service", "carrel-sandboxes.service", "carrel-sandboxes.slice")
STARTED = ("carrel.service", "carrel-sandboxes.service", "reboot.service")


class UnusableSystem(Exception):
    """A machine cannot boot from what was downloaded or built."""


@dataclass(frozen=True)
class KernelFiles:
    """The output of `fetch.sh`: an unpacked kernel, and a static busybox."""

    directory: Path

    @property
    def kernel(self) -> Path:
        return self._one("kernel/boot/vmlinuz-*")

    @property
    def modules(self) -> Path:
        # Debian 13 has them below `usr`.
        found = [*self.directory.glob("kernel/lib/modules/*"), *self.directory.glob("kernel/usr/lib/modules/*")]
        if len(found) != 1:
            raise UnusableSystem(f"{self.directory} has the modules of {len(found)} kernels")
        return found[0]

    @property
    def busybox(self) -> Path:
        return self._one("busybox/**/bin/busybox")

    def _one(self, pattern: str) -> Path:
        found = sorted(self.directory.glob(pattern))
        if len(found) != 1:
            raise UnusableSystem(f"{self.directory} has {len(found)} files {pattern}")
        return found[0]


@dataclass(frozen=True)
class Suite:
    """A test binary, and the arguments that select its tests."""

    name: str
    executable: Path
    arguments: tuple[str, ...]


def archive(fetched: KernelFiles) -> bytes:
    """The archive that the kernel unpacks: busybox, modules in their order, and the first program."""
    made = Archive()
    for directory in ("bin", "dev", "disk", "modules"):
        made.directory(directory)
    # Without it, the output of the first program is lost.
    made.device("dev/console", 5, 1)
    made.file("bin/busybox", fetched.busybox.read_bytes(), 0o755)
    made.file("init", (GUEST / "first.sh").read_bytes(), 0o755)
    for number, (name, content) in enumerate(Modules(fetched.modules).in_order(MODULES)):
        made.file(f"modules/{number:02}-{name}.ko", content)
    return made.finish()


def disk(fetched: KernelFiles, programs: Path, examples: Iterable[Path], suites: Iterable[Suite], scratch: Path) -> Path:
    """A disk with a small system, the programs, and the suites."""
    root = scratch / "root"
    for directory in (*DIRECTORIES, *(f"usr/{name}" for name in MERGED)):
        (root / directory).mkdir(parents=True, exist_ok=True)
    for directory in ("tmp", "var/tmp"):
        (root / directory).chmod(0o1777)
    for name in MERGED:
        (root / name).symlink_to(f"usr/{name}")
    for name, text in FILES.items():
        (root / name).write_text(text)
    _busybox(fetched.busybox, root / "usr" / "bin")
    _busybox(fetched.busybox, root / "image" / "bin")
    for directory in ("etc", "tmp", "proc", "dev", "sys", "root"):
        (root / "image" / directory).mkdir()
    for program in PROGRAMS:
        _dynamic(Path(program), root)
    _library(root)
    (root / "usr" / "bin" / "sh").unlink()
    (root / "usr" / "bin" / "sh").symlink_to("dash")
    shutil.copy(GUEST / "init.sh", root / "usr" / "sbin" / "init")
    (root / "usr" / "sbin" / "init").chmod(0o755)
    for script in ("checks.sh", "harness.sh"):
        shutil.copy(GUEST / script, root / "opt" / script)
    (root / "usr" / "share").mkdir()
    shutil.copy(GUEST / "sockets.py", root / "usr" / "share" / "sockets.py")
    (root / "opt" / "carrel" / "examples").mkdir(parents=True)
    for name in OURS:
        shutil.copy(programs / name, root / "opt" / "carrel" / name)
    for example in examples:
        shutil.copy(example, root / "opt" / "carrel" / "examples" / example.name)
    lines = []
    for suite in suites:
        shutil.copy(suite.executable, root / "opt" / "tests" / suite.name)
        lines.append(" ".join((suite.name, f"/opt/tests/{suite.name}", *suite.arguments)))
    (root / "opt" / "suites").write_text("\n".join(lines) + "\n")
    return _format(root, scratch / "disk.img")


def systemd_disk(debian: Path, programs: Path, packaging: Path, scratch: Path) -> Path:
    """A disk with a Debian with systemd, Carrel installed as documented, and the checks of each boot."""
    root = scratch / "root"
    root.mkdir()
    _call(["tar", "-C", str(root), "--numeric-owner", "-xpf", str(debian)])
    for directory in ("dev", "proc", "sys", "run"):
        (root / directory).mkdir(exist_ok=True)
    for name in OURS:
        shutil.copy(programs / name, root / "usr" / "local" / "bin" / name)
    units = root / "etc" / "systemd" / "system"
    for name in UNITS:
        shutil.copy(packaging / name, units / name)
    shutil.copy(GUEST / "reboot.service", units / "reboot.service")
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    for name in STARTED:
        (wants / name).symlink_to(f"/etc/systemd/system/{name}")
    # Without it, the first boot asks questions.
    (root / "etc" / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    for script in ("reboot.sh", "harness.sh"):
        shutil.copy(GUEST / script, root / "opt" / script)
    return _format(root, scratch / "disk.img")


def _busybox(busybox: Path, directory: Path) -> None:
    """Installs busybox under each of its names."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(busybox, directory / "busybox")
    names = subprocess.run([busybox, "--list"], stdout=subprocess.PIPE, check=True, text=True, timeout=60)
    for name in names.stdout.split():
        if name != "busybox":
            (directory / name).symlink_to("busybox")


def _dynamic(program: Path, root: Path) -> None:
    """Copies a program of this system with its shared libraries, under the same paths."""
    linked = subprocess.run(["ldd", program], stdout=subprocess.PIPE, check=True, text=True, timeout=60)
    for path in (str(program), *re.findall(r"(/\S+) \(0x", linked.stdout)):
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        # The name may be a symlink to busybox, which a copy would follow.
        target.unlink(missing_ok=True)
        shutil.copy(path, target)


def _library(root: Path) -> None:
    """Copies the standard library of Python, without its large and optional parts."""
    command = ["/usr/bin/python3", "-I", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
    library = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=60).stdout.strip()
    left_out = shutil.ignore_patterns("test", "*-packages", "config-*", "idlelib", "tkinter", "lib2to3")
    shutil.copytree(library, root / library.lstrip("/"), symlinks=True, ignore=left_out)


def _format(root: Path, image: Path) -> Path:
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    _call(["/usr/sbin/mkfs.ext4", "-q", "-d", str(root), "-E", "root_owner=0:0", str(image)])
    return image


def _call(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise UnusableSystem(f"{command[0]}: {done.stderr}")
