"""One machine, emulated: two processors, one gibibyte, a disk, and two serial lines that are files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.process import Finished, Watchdog

# Nothing from v1, no word of the kernel that is no trouble, and after a panic an end instead of a wait.
COMMAND_LINE = "console=ttyS0 quiet panic=-1 cgroup_no_v1=all"


@dataclass(frozen=True)
class Ran:
    """A machine that is off: what its kernel said on the first line, and what its tests said on the second."""

    how: Finished
    console: str
    said: str


def run(watchdog: Watchdog, kernel: Path, archive: Path, disk: Path, scratch: Path, limit: float) -> Ran:
    """Starts a machine and waits until it turns itself off, or is ended."""
    lines = [scratch / "console", scratch / "said"]
    # Without `cmpxchg16b`: QEMU 7.2 loses the flags in it now and then, and the kernel panics. It can do without.
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "qemu64,-cx16", "-m", "1024", "-smp", "2"]
    command += ["-nodefaults", "-display", "none", "-no-reboot"]
    command += ["-kernel", str(kernel), "-initrd", str(archive), "-append", COMMAND_LINE]
    command += ["-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"]
    for line in lines:
        command += ["-serial", f"file:{line}"]
    done = watchdog.run(command, cwd=scratch, limit=limit)
    console, said = (line.read_bytes().decode(errors="replace") if line.exists() else "" for line in lines)
    return Ran(done, console, said)
