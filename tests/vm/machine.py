"""An emulated machine: two processors, one gibibyte, a disk, and two serial lines that are files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.process import Finished, Watchdog

# No cgroup v1, only errors of the kernel on the console, and a reboot after a panic.
COMMAND_LINE = "console=ttyS0 quiet panic=-1 cgroup_no_v1=all systemd.getty_auto=no"
# Runs a machine until it writes `@ cut` to its second serial line, and then kills it.
UNTIL_CUT = r"""
output="$1"; shift
: >"$output"
"$@" & machine=$!
grep -q -m1 "^@ cut" < <(tail -n +1 -f --pid=$machine "$output")
kill -KILL $machine 2>/dev/null
wait $machine
"""


@dataclass(frozen=True)
class Machine:
    """What a machine boots from. Its disk keeps its content between boots."""

    kernel: Path
    archive: Path
    disk: Path
    # The cache mode of QEMU. `unsafe` ignores flushes, and is fast; `writeback` keeps what the guest flushed. What was only
    # in the memory of the guest is lost when the machine is killed.
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
class FinishedMachine:
    """A machine that is off: the output of its kernel on the first serial line, and of its tests on the second."""

    process: Finished
    console: str
    output: str


def run(watchdog: Watchdog, machine: Machine, scratch: Path, limit: float) -> FinishedMachine:
    """Starts a machine and waits until it powers off, reboots, asks for a power cut, or reaches the time limit."""
    lines = [scratch / "console", scratch / "output"]
    command = ["bash", "-c", UNTIL_CUT, "machine", str(lines[1]), *machine.command(lines)]
    done = watchdog.run(command, cwd=scratch, limit=limit)
    console, output = (line.read_bytes().decode(errors="replace") if line.exists() else "" for line in lines)
    return FinishedMachine(done, console, output)
