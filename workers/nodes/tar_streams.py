"""Archives that are made while they are sent: a tar of which only a piece is ever in memory.

Invariant: the length is known before the first byte.
"""

import asyncio
import tarfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiohttp import web

BLOCK = tarfile.BLOCKSIZE
PIECE = 2**20


class Streamed(Protocol):
    """A file that is made while it is read."""

    @property
    def size(self) -> int: ...

    def read(self) -> Iterator[bytes]:
        """Yield its bytes, `size` in all."""


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file of an archive: its name there, and where its bytes are."""

    name: str
    source: Path | bytes | Streamed

    @property
    def size(self) -> int:
        match self.source:
            case bytes():
                return len(self.source)
            case Path():
                return self.source.stat().st_size
            case _:
                return self.source.size

    @property
    def header(self) -> bytes:
        info = tarfile.TarInfo(self.name)
        info.size, info.mode = self.size, 0o644
        return info.tobuf(tarfile.PAX_FORMAT)

    @property
    def padding(self) -> bytes:
        return bytes(-self.size % BLOCK)

    def read(self) -> Iterator[bytes]:
        """Yield its bytes."""
        match self.source:
            case bytes():
                yield self.source
            case Path():
                with self.source.open("rb") as file:
                    left = self.size
                    while left and (piece := file.read(min(PIECE, left))):
                        left -= len(piece)
                        yield piece
            case _:
                yield from self.source.read()


async def sent(request: web.Request, entries: Sequence[ArchiveEntry]) -> web.StreamResponse:
    """Send an archive; with `check=1` only say how long it is and what is in it."""
    size = sum(len(entry.header) + entry.size + len(entry.padding) for entry in entries) + 2 * BLOCK
    if request.query.get("check"):
        files = [{"name": entry.name, "bytes": entry.size} for entry in entries]
        return web.json_response({"bytes": size, "files": files})
    response = web.StreamResponse(headers={"Content-Type": "application/x-tar", "Content-Length": str(size)})
    await response.prepare(request)
    async for piece in pieces(entries):
        await response.write(piece)
    await response.write_eof()
    return response


async def pieces(entries: Sequence[ArchiveEntry]) -> AsyncIterator[bytes]:
    """Yield the bytes of an archive."""
    for entry in entries:
        yield entry.header
        reading = entry.read()
        while (piece := await asyncio.to_thread(next, reading, None)) is not None:
            yield piece
        yield entry.padding
    yield bytes(2 * BLOCK)
