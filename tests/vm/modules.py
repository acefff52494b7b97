"""The modules of an unpacked kernel, with their dependencies."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


class MissingModule(Exception):
    """A kernel has a module neither as a file nor built in."""


class Modules:
    """The content of `lib/modules/RELEASE`."""

    def __init__(self, directory: Path) -> None:
        self._files = {_name(path.name): path for path in directory.rglob("*.ko*")}
        listed = (directory / "modules.builtin").read_text().splitlines()
        self._built_in = {_name(Path(line).name) for line in listed}

    def in_order(self, names: Iterable[str]) -> list[tuple[str, bytes]]:
        """The modules to insert, each after its dependencies; built-in ones are left out."""
        found: dict[str, bytes] = {}
        for name in names:
            self._add(name, found)
        return list(found.items())

    def _add(self, name: str, found: dict[str, bytes]) -> None:
        if name in found or name in self._built_in:
            return
        if name not in self._files:
            raise MissingModule(f"the kernel has no module {name}")
        content = _content(self._files[name])
        for needed in _dependencies(content):
            self._add(needed, found)
        found[name] = content


def _name(file: str) -> str:
    return file.split(".ko")[0].replace("-", "_")


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def _dependencies(content: bytes) -> Iterator[str]:
    """The names in the field `depends` of a module."""
    match = _DEPENDS.search(content)
    for name in (match[1].decode().split(",") if match else []):
        if name:
            yield _name(name)
