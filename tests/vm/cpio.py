"""Writes a cpio archive of the format `newc`, which the kernel unpacks as its first file system."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field

_TRAILER = "TRAILER!!!"


@dataclass
class Archive:
    """The entries so far, in the order in which the kernel creates them: a directory before its content."""

    _parts: list[bytes] = field(default_factory=list)
    _count: int = 0

    def directory(self, path: str) -> None:
        self._entry(path, stat.S_IFDIR | 0o755)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._entry(path, stat.S_IFREG | mode, content)

    def link(self, path: str, target: str) -> None:
        self._entry(path, stat.S_IFLNK | 0o777, target.encode())

    def device(self, path: str, major: int, minor: int) -> None:
        self._entry(path, stat.S_IFCHR | 0o600, device=(major, minor))

    def finish(self) -> bytes:
        """Ends the archive, and returns it."""
        self._entry(_TRAILER, 0)
        return b"".join(self._parts)

    def _entry(self, path: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        name = path.encode() + b"\0"
        self._count += 1
        links = 2 if stat.S_ISDIR(mode) else 1
        # inode, mode, user, group, links, time, size, device of the archive, device, length of the name, checksum
        fields = [self._count, mode, 0, 0, links, 0, len(content), 0, 0, *device, len(name), 0]
        header = b"070701" + b"".join(b"%08X" % value for value in fields)
        self._parts += [_padded(header + name), _padded(content)]


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 4)
