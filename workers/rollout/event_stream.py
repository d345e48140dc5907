"""Server-sent events out of the pieces of an answer.

Invariant: an event of more than `MOST_LINE` bytes, and a stream of more than `MOST_BYTES`, ends the reading by name.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator

from workers.packages.inside.rpc import MOST_BYTES, ServerBroke
from workers.packages.inside.shapes import MOST_LINE

_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""Of a line; a carriage return at the end of what was read may be half of one."""


class EventStream:
    """The events of one answer, once."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""
        """What was read and is no whole line yet."""
        self._data: list[bytes] = []
        """Of the event that is being read."""
        self._size = self._read = 0

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the data of events that have any. Raises ServerBroke for a stream that is too long."""
        async for piece in self._pieces:
            self._read += len(piece)
            *lines, self._held = _END.split(self._held + piece)
            for line in lines:
                if (event := self._line(line)) is not None:
                    yield event
            self._check()
        if self._held.endswith(b"\r") and (event := self._line(self._held[:-1])) is not None:
            yield event

    def _line(self, line: bytes) -> bytes | None:
        """Take a line; returns the data of the event that it ends."""
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(value) + 1
                self._check()
            return None
        data, self._data, self._size = self._data, [], 0
        return b"\n".join(data) if data else None

    def _check(self) -> None:
        if len(self._held) + self._size > MOST_LINE:
            raise ServerBroke(f"oversized: an event of more than {MOST_LINE} bytes")
        if self._read > MOST_BYTES:
            raise ServerBroke(f"oversized: more than {MOST_BYTES} bytes without an answer")
