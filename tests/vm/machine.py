"""One machine, emulated: two processors, one gibibyte, a disk, and two serial lines that are files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.process import Finished, Watchdog

# Nothing from v1, no word of the kernel that is no trouble, and after a panic an end instead of a wait.
COMMAND_LINE = "console=ttyS0 quiet panic=-1 cgroup_no_v1=all systemd.getty_auto=no"
# Runs a machine until it says so on the line that is a file, and kills it then.
UNTIL_CUT = r"""
said="$1"; shift
: >"$said"
"$@" & machine=$!
grep -q -m1 "^@ cut" < <(tail -n +1 -f --pid=$machine "$said")
kill -KILL $machine 2>/dev/null
wait $machine
"""


@dataclass(frozen=True)
class Machine:
    """What a machine starts from. What it writes to its disk is there when it is started again."""

    kernel: Path
    archive: Path
    disk: Path
    # Of QEMU. `unsafe` forgets what the guest flushes, and is fast; `writeback` keeps what reached the host, as a disk
    # keeps what reached it. What the guest had only in its own memory is lost with a machine that is killed.
    cache: str = "unsafe"

    def command(self, lines: list[Path]) -> list[str]:
        # Without `cmpxchg16b`: QEMU 7.2 loses the flags in it now and then, and the kernel panics. It can do without.
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "qemu64,-cx16", "-m", "1024"]
        command += ["-smp", "2", "-nodefaults", "-display", "none", "-no-reboot"]
        command += ["-kernel", str(self.kernel), "-initrd", str(self.archive), "-append", COMMAND_LINE]
        command += ["-drive", f"file={self.disk},format=raw,if=virtio,cache={self.cache}"]
        for line in lines:
            command += ["-serial", f"file:{line}"]
        return command


@dataclass(frozen=True)
class Ran:
    """A machine that is off: what its kernel said on the first line, and what its tests said on the second."""

    how: Finished
    console: str
    said: str


def run(watchdog: Watchdog, machine: Machine, scratch: Path, limit: float) -> Ran:
    """Starts a machine and waits until it turns itself off or reboots, says that its power is cut, or is ended."""
    lines = [scratch / "console", scratch / "said"]
    command = ["bash", "-c", UNTIL_CUT, "machine", str(lines[1]), *machine.command(lines)]
    done = watchdog.run(command, cwd=scratch, limit=limit)
    console, said = (line.read_bytes().decode(errors="replace") if line.exists() else "" for line in lines)
    return Ran(done, console, said)
