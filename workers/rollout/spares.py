"""More environments than members: a group's slowest members are played a second time beside the first.

Invariants: a member has one outcome, that of whichever environment finishes first; a failure counts only when both
failed. Both play the same draw and member, whose chances are keyed by these, so who wins says nothing about what was
played: unlike with surplus members, short episodes are not favoured. No member has more than two environments.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from flexmarl.contracts.wire import EpisodeStatus
from workers.rollout.episode import EpisodeAttempt

Again = Callable[[int], Coroutine[Any, Any, EpisodeAttempt]]
"""Plays a member in a second environment."""


async def play_with_spares(
    playing: "list[asyncio.Task[EpisodeAttempt]]", spares: int, again: Again
) -> list[EpisodeAttempt]:
    """Wait for all members, by number; once no more of them play than there are spares, each gets another one."""
    waiting = set(playing)
    while len(waiting) > spares:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    slow = [member for member, task in enumerate(playing) if task in waiting]
    sooner = await asyncio.gather(*(_sooner(playing[member], again(member)) for member in slow))
    replaced = dict(zip(slow, sooner, strict=True))
    return [replaced[member] if member in replaced else task.result() for member, task in enumerate(playing)]


async def _sooner(first: "asyncio.Task[EpisodeAttempt]", second: Coroutine[Any, Any, EpisodeAttempt]) -> EpisodeAttempt:
    twin = asyncio.create_task(second)
    try:
        done, _ = await asyncio.wait({first, twin}, return_when=asyncio.FIRST_COMPLETED)
        ahead, behind = (first, twin) if first in done else (twin, first)
        attempt = ahead.result()
        if attempt.status is not EpisodeStatus.FINISHED:
            ahead, attempt = behind, await behind
        finished = attempt.status is EpisodeStatus.FINISHED
        return replace(attempt, replaced=ahead is twin and finished)
    finally:
        first.cancel()
        twin.cancel()
        await asyncio.wait({first, twin})
