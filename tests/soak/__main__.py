"""Runs one soak: `python3 -m soak CARREL SECONDS [SEED]` from `tests/`. Prints its counts as one JSON object."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .home import Home
from .workload import MIB, Workload


def main() -> int:
    carrel, seconds = Path(sys.argv[1]), float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    print(f"soak: {seconds:.0f} s, seed {seed}", file=sys.stderr, flush=True)
    directory = Path(tempfile.mkdtemp(prefix="carrel-soak-", dir="/var/tmp"))
    home = Home(directory, carrel)
    home.mount(512 * MIB)
    workload = Workload(home, random.Random(seed), sized=0.4)
    try:
        home.start()
        workload.run(seconds)
    except BaseException:
        print(f"seed {seed}, after {dict(workload.counts)}; logs are in {directory}", file=sys.stderr, flush=True)
        clean(home)
        raise
    home.unmount()
    shutil.rmtree(directory)
    print(json.dumps({"seed": seed, "seconds": seconds, "steps": dict(sorted(workload.counts.items()))}))
    return 0


def clean(home: Home) -> None:
    """Kills what a failed soak left, as far as possible; its logs stay."""
    if home.daemon is not None:
        home.daemon.kill()
        home.daemon.wait()
    subprocess.run([home.carrel, "rm", "--force", "--label", "soak=1"], env=home.env, check=False, timeout=60)
    lock = home.home / "daemon.lock"
    if lock.is_file() and (pid := lock.read_text().strip()):
        subprocess.run(["kill", pid], check=False)
    subprocess.run(["umount", "-l", home.disk], check=False)


if __name__ == "__main__":
    sys.exit(main())
