"""Records what a terminal shows of some commands, as the pictures of the README.

    python3 scripts/pictures.py PROGRAMS      a directory with the programs; writes docs/images/*.svg
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import xml.sax.saxutils
from dataclasses import dataclass
from pathlib import Path

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COLUMNS, ROWS = 92, 40
# The size of a character of 14 px, and the margin.
WIDTH, HEIGHT, MARGIN = 8.4, 20, 16
COLORS = {30: "#6e7681", 31: "#ff7b72", 32: "#7ee787", 33: "#f2cc60", 34: "#79c0ff", 35: "#d2a8ff", 36: "#a5d6ff", 37: "#e6edf3"}
PLAIN, BACKGROUND, PROMPT = COLORS[37], "#0d1117", "\x1b[32m$\x1b[0m "


@dataclass(frozen=True)
class Picture:
    """A picture: commands that run unseen, and commands that are shown with their output."""

    name: str
    title: str
    setup: str
    shown: tuple[str, ...]


PICTURES = (
    Picture(
        "run",
        "carrel run: a command works on a copy of a project",
        "mkdir project; printf 'def answer():\\n    return 41\\n' >project/answer.py",
        (
            "carrel run --project project --keep-changes answer host -- \\\n"
            "    sh -c 'sed -i s/41/42/ answer.py; echo fixed >notes.txt'",
        ),
    ),
    Picture("diff", "carrel diff and carrel apply: review and apply what it changed", "", ("carrel diff answer", "carrel apply answer")),
    Picture(
        "ps",
        "carrel ps: sandboxes and their jobs",
        "carrel create --id website --port 8080:80 host; carrel exec --detach --job server website -- sleep 1000;"
        " carrel create --id database host; carrel create --id tests host; carrel stop tests",
        ("carrel ps", "carrel ps website"),
    ),
)


def record(command: str, environment: dict[str, str], directory: Path) -> str:
    """What a command writes to a terminal."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(directory)
        os.execvpe("bash", ["bash", "-c", command], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written = bytearray()
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:
            # Every process has closed it.
            break
        written += read
        if not read:
            break
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    text = written.decode()
    if status != 0:
        raise SystemExit(f"error: {command}: status {os.waitstatus_to_exitcode(status)}\n{text}")
    return text


def repeatable(text: str, directory: Path) -> str:
    """A recording without what differs from one to the next: the directory, and how old a sandbox is."""
    text = text.replace(str(directory), "/home/ada").replace("\r\n", "\n").replace("\0", "")
    return re.sub(r"(?<= )\d+s(?= )", lambda found: "5s".ljust(len(found[0])), text)


def runs(line: str) -> list[tuple[int, str, str]]:
    """The parts of a line: the column, the colour, and the text."""
    found, column, color = [], 0, PLAIN
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b"):
            for code in re.findall(r"\d+", part) or ["0"]:
                color = COLORS.get(int(code) % 60 if int(code) >= 90 else int(code), PLAIN if code in ("0", "39") else color)
        elif part:
            found.append((column, color, part))
            column += len(part)
    return found


def svg(title: str, lines: list[str]) -> str:
    """The lines as a terminal shows them; each part has a fixed width, whatever the font."""
    width, height = COLUMNS * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    picture = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" xml:space="preserve"'
        ' font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="14">',
        f"<title>{xml.sax.saxutils.escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
    ]
    for number, line in enumerate(lines):
        for column, color, text in runs(line):
            words = text.lstrip()
            if words.strip():
                x, y = MARGIN + (column + len(text) - len(words)) * WIDTH, MARGIN + number * HEIGHT + 14
                words = words.rstrip()
                picture.append(
                    f'<text x="{x:g}" y="{y}" fill="{color}" textLength="{len(words) * WIDTH:g}">'
                    f"{xml.sax.saxutils.escape(words)}</text>"
                )
    return "\n".join([*picture, "</svg>"]) + "\n"


def stop_daemon(home: Path) -> None:
    """Ends the daemon that a command started."""
    try:
        process = os.pidfd_open(int((home / "daemon.lock").read_text()))
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return
    signal.pidfd_send_signal(process, signal.SIGTERM)
    select.select([process], [], [])
    os.close(process)


def write(programs: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="carrel-pictures-") as scratch:
        directory = Path(scratch)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CARREL_")},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CARREL_HOME": str(directory / "state"),
            "XDG_RUNTIME_DIR": str(directory),
            "TERM": "xterm-256color",
        }
        try:
            for picture in PICTURES:
                unseen = ["bash", "-euc", picture.setup]
                subprocess.run(unseen, env=environment, cwd=directory, stdout=subprocess.DEVNULL, check=True)
                lines = []
                for command in picture.shown:
                    written = repeatable(record(command, environment, directory), directory)
                    lines += [*f"{PROMPT}{command}".split("\n"), *written.rstrip("\n").split("\n")]
                IMAGES.mkdir(exist_ok=True)
                (IMAGES / f"{picture.name}.svg").write_text(svg(picture.title, lines))
        finally:
            for sandbox in ("website", "database", "tests"):
                subprocess.run(["carrel", "rm", "--force", sandbox], env=environment, capture_output=True, check=False)
            stop_daemon(directory / "state")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]).resolve())
