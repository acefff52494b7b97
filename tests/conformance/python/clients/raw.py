"""A client without the package, for bytes that the package would not send."""

from __future__ import annotations

import asyncio
import struct

HEADER = struct.Struct(">IIB")
RANGE = struct.Struct(">II")


class RawClient:
    """A connection that has received its prologue."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ids: range) -> None:
        self._reader = reader
        self._writer = writer
        self.ids = ids

    @classmethod
    async def connect(cls, path: str) -> "RawClient":
        reader, writer = await asyncio.open_unix_connection(path)
        raw = cls(reader, writer, range(*RANGE.unpack(await reader.readexactly(RANGE.size))))
        ready = await raw.next()
        assert ready and ready[:2] == (0, 0), ready
        return raw

    async def send(self, id: int, flags: int, body: bytes) -> None:
        await self.send_bytes(frame(id, flags, body))

    async def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def next(self) -> tuple[int, int, bytes] | None:
        """The id, the flags and the body of the next frame; None when the other side has closed."""
        try:
            length, id, flags = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            return id, flags, await self._reader.readexactly(length - 5)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def frame(id: int, flags: int, body: bytes) -> bytes:
    return HEADER.pack(len(body) + 5, id, flags) + body
