"""The archive of replay: groups that a step was taken on, and which of them are trained again.

Pure functions on plain values. An archive is a list in the order (version of the oldest token, draw), so what grows too
old first stands in front, and what leaves by age is its beginning. Its content and what is drawn depend on the groups
alone, never on the order in which they settled. A draw looks at what it takes and passes over, not at the whole.
"""

from bisect import bisect_left, insort
from typing import Literal

import msgspec

Order = Literal["earliest_deadline", "newest"]
Row = tuple[int, int, str, int, tuple[float, ...], float, int]
"""member, attempt, role, first turn, advantage of each turn, weight, tokens."""


class ArchivedGroup(msgspec.Struct, gc=False):
    """A policy's rows of one group, as they were cut."""

    oldest: int
    """Version of the first token of its oldest row."""
    draw: int
    last: int
    """Cohort in which it was trained last."""
    rows: list[Row]
    uses: int = 0
    """How often it was replayed."""


def add(archive: list[ArchivedGroup], group: ArchivedGroup) -> None:
    """Take in a group, unless nothing can be learned from it: all of its advantages are 0."""
    if any(advantage for row in group.rows for advantage in row[4]):
        insort(archive, group, key=_place)


def expire(archive: list[ArchivedGroup], version: int, max_age: int) -> int:
    """Drop what is too old to train a version; returns how many groups that were."""
    gone = bisect_left(archive, (version - max_age, -1), key=_place)
    del archive[:gone]
    return gone


def draw(archive: list[ArchivedGroup], count: int, cohort: int, max_uses: int, order: Order) -> list[ArchivedGroup]:
    """Take so many groups for a cohort, in the order of the archive, and drop those that are used up by it.

    A group is taken once for a cohort, never for the one that it was played for.
    """
    places = range(len(archive)) if order == "earliest_deadline" else range(len(archive) - 1, -1, -1)
    taken: list[int] = []
    for place in places:
        if len(taken) >= count:
            break
        if archive[place].last < cohort:
            taken.append(place)
    if not taken:
        return []
    first, last = min(taken), max(taken)
    drawn = [archive[place] for place in sorted(taken)]
    for group in drawn:
        group.uses, group.last = group.uses + 1, cohort
    archive[first : last + 1] = [group for group in archive[first : last + 1] if group.uses < max_uses]
    return drawn


def replayed_groups(fresh: int, share: float) -> int:
    """Return how many groups of the archive a step with so many of its own takes, so that they are `share` at most."""
    return int(fresh * share / (1.0 - share) + 1e-9)


def imported(archive: list[ArchivedGroup]) -> int:
    """Count the groups of another run: as old as version 0 and with draws below 0, they stand in front."""
    return bisect_left(archive, (0, 0), key=_place)


def ages_of(archive: list[ArchivedGroup], version: int) -> dict[int, tuple[int, int]]:
    """Return how many groups and rows there are of each age in versions, the youngest first."""
    found: dict[int, tuple[int, int]] = {}
    for group in reversed(archive):
        groups, rows = found.get(version - group.oldest, (0, 0))
        found[version - group.oldest] = groups + 1, rows + len(group.rows)
    return found


def _place(group: ArchivedGroup) -> tuple[int, int]:
    return group.oldest, group.draw
