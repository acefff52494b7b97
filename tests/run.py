"""`./test`: runs the stages. The last line of its output is `N passed, N failed, N skipped`.

`./test` calls it after setup. A failure fails the run, as does a skip that `tests/skips.toml` does not list. Times are printed
and not checked; a watchdog kills programs that hang.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

from runner import record  # noqa: E402
from runner.outcome import Ledger, Outcome, Status  # noqa: E402
from runner.process import Watchdog  # noqa: E402
from runner.skips import Skips  # noqa: E402
from runner.stages import MINUTE, Run  # noqa: E402

STAGES = ("runner", "lint", "build", "unit", "real", "soak", "foreign", "agents", "docs", "package")
FULL_STAGES = (*STAGES, "vm", "fresh")
NEED_BUILD = {"unit", "real", "soak", "foreign", "agents", "docs", "package", "vm"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./test", description="Runs every check and test of the project.")
    parser.add_argument("--full", action="store_true", help="full numbers and the slow suites; over an hour")
    parser.add_argument("--only", action="append", choices=FULL_STAGES, help="run this stage only; may be repeated")
    return parser.parse_args()


def chosen(only: list[str] | None, full: bool) -> list[str]:
    """The stages of this run. `build` is added if one of them needs it."""
    if not only:
        return list(FULL_STAGES if full else STAGES)
    wanted = set(only) | ({"build"} if NEED_BUILD & set(only) else set())
    return [stage for stage in FULL_STAGES if stage in wanted]


def run_stage(run: Run, stage: str) -> None:
    print(f"\n== {stage}", flush=True)
    started = time.monotonic()
    try:
        if run.watchdog.remaining() == 0:
            run.ledger.add(Outcome(stage, Status.FAILED, None, "not run: the time limit of the whole run was exceeded"))
        elif stage in NEED_BUILD and not run.built:
            print("  not run: the build failed")
        else:
            getattr(run, stage)()
    except Exception:
        run.ledger.add(Outcome(stage, Status.FAILED, None, traceback.format_exc()))
    run.ledger.stages.append((stage, time.monotonic() - started))


def accept_signals() -> None:
    """Installs handlers for signals that `nohup` and `&` ignore: programs under test would inherit an ignored signal."""
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def main() -> int:
    accept_signals()
    options = arguments()
    # An exception, so that a terminated run stops the programs that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    # `./test` refuses to run if this is set, so that a document cannot call it again.
    os.environ["CARREL_IN_TEST"] = "1"
    ledger = Ledger(stages=[("setup", float(os.environ.get("CARREL_SETUP_SECONDS", "0")))])
    run = Run(
        root=ROOT,
        full=options.full,
        ledger=ledger,
        watchdog=Watchdog((300 if options.full else 75) * MINUTE),
        skips=Skips.load(ROOT / "tests" / "skips.toml"),
        cache=Path(os.environ["CARREL_CACHE"]),
    )
    stages = chosen(options.only, options.full)
    for stage in stages:
        run_stage(run, stage)
    if set(STAGES) <= set(stages) and run.built:
        run_stage(run, "close")
    for note in record.stale(ROOT):
        ledger.note(note)
    run.check("skips::every_skip_is_listed", lambda: run.skips.unlisted(ledger))
    if options.full and not options.only:
        print(f"\nwritten: {record.write(ROOT, ledger).relative_to(ROOT)}")
    print(ledger.report(), flush=True)
    return 1 if ledger.count(Status.FAILED) else 0


if __name__ == "__main__":
    sys.exit(main())
