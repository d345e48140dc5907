"""Server-sent events are read whole, and no more of them than their bounds allow."""

from collections.abc import AsyncIterator

import pytest

from workers.packages.inside.rpc import ServerBroke
from workers.rollout.event_stream import EventStream

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_events_are_read_whole_however_they_are_cut(end: str) -> None:
    lines = [
        ": comment",
        "data: one",
        "",
        "event: x",
        "id: 7",
        "",
        "data:two",
        "data: ",
        "data:  three",
        "retry: 5",
        "",
    ]
    body = "".join(line + end for line in lines).encode()
    for size in (1, 2, 3, 7, len(body)):

        async def pieces(size: int = size) -> AsyncIterator[bytes]:
            for at in range(0, len(body), size):
                yield body[at : at + size]

        assert [event async for event in EventStream(pieces()).events()] == [b"one", b"two\n\n three"]


async def test_a_stream_is_bounded() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b": nothing\n" * 1000

    with pytest.raises(ServerBroke, match="more than 4194304 bytes without an answer"):
        _ = [event async for event in EventStream(pieces()).events()]
