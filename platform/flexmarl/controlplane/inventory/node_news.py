"""What there is to look at for a node without the broker, as lines of JSON on a stream that stays open.

Invariants: a line is a hint. Who hears it reads the rows, so one that was lost is said again as long as the row waits
(`news_board`). Behind a revocation the stream says so and ends. An empty line each `QUIET_S` shows that it lives.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator

from flexmarl.controlplane.inventory.news_board import AWAY, Line, NewsBoard, NewsListener, words_of
from flexmarl.controlplane.inventory.node_work import NodeWork
from flexmarl.store.node_operations import NodeCaller

ROLES = ("device", "node", "reward", "rollout")
QUIET_S = 4.0
LONGEST_S = 3600.0
"""A stream ends after an hour; the node connects again."""


async def lines(board: NewsBoard, work: NodeWork, caller: NodeCaller, role: str, header: str) -> AsyncIterator[bytes]:
    """Yield news of a role until the token that a header names holds no more, or an hour."""
    until = time.monotonic() + LONGEST_S
    yield b"\n"
    try:
        listener = NewsListener(frozenset(await work.done(caller.node, words_of, caller, role)), header)
    except AWAY:
        return
    with board.listening(listener):
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(QUIET_S):
                    await listener.told.wait()
            except TimeoutError:
                yield b"\n"
                continue
            if found := listener.fetch():
                yield b"".join(map(_line, found))
            if listener.over:
                return
            if listener.refused:
                yield _line({"refused": listener.refused})
                return


def _line(what: Line) -> bytes:
    return json.dumps(what).encode() + b"\n"
