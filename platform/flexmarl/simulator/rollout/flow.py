"""Turns of many episodes as columns of numbers, advanced together from one look at the engines to the next.

Between two looks every turn of a pool (those that the same weights may answer) makes tokens at one pace: that of
engines among which requests are spread evenly. When each turn and each wait ends inside that time is exact, so an
episode of short turns goes through several of them between two looks.

Invariants: a column's turn makes no token before its prompt is computed, none beyond its reply, and none while no
engine may answer it; whoever asked first gets a slot first.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexmarl.simulator.devices.engine_pools import Pools
from flexmarl.simulator.scenarios.draws import Sheet

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(slots=True)
class Columns:
    """One row per episode; turns that are asked beside each other have a column each."""

    left: Numbers
    """Tokens that a turn has yet to make; 0 where none is asked."""
    at: Numbers
    """Until when it was advanced; infinite while it has no slot."""
    pool: Places
    cells: Numbers
    """Places in the cache that a turn may come to need."""
    wait: Numbers
    """When an episode's environment is done; infinite while it is asked something, or is no episode."""
    stage: Places
    """Stages begun so far."""
    stages: Places
    own: Places
    """Pool of each policy."""
    prompts: Numbers
    replies: Numbers
    waits: Numbers

    @classmethod
    def empty(cls, rows: int, stages: int, width: int, policies: int) -> "Columns":
        """Return rows that no episode has."""
        return cls(
            left=np.zeros((rows, width)),
            at=np.full((rows, width), -inf),
            pool=np.zeros((rows, width), np.int64),
            cells=np.zeros((rows, width)),
            wait=np.full(rows, inf),
            stage=np.zeros(rows, np.int64),
            stages=np.zeros(rows, np.int64),
            own=np.zeros((rows, policies), np.int64),
            prompts=np.zeros((rows, stages, width)),
            replies=np.zeros((rows, stages, width)),
            waits=np.zeros((rows, stages)),
        )

    def grown(self, rows: int, stages: int) -> "Columns":
        """Return a copy with room for more."""
        more = Columns.empty(rows, stages, self.left.shape[1], self.own.shape[1])
        for name in self.__slots__:
            before = getattr(self, name)
            getattr(more, name)[tuple(slice(size) for size in before.shape)] = before
        return more


class TurnFlow:
    """`asked` is the policy of each turn of a round, by stage and column; -1 where a stage asks fewer."""

    def __init__(self, asked: Places, policies: int, pools: Pools, prefill: float) -> None:
        self.tokens = 0.0
        """Made so far."""
        self.changes = 0
        """Turns that were asked, turns that were answered and waits that were over so far."""
        self._asked, self._pools, self._prefill = asked, pools, prefill
        self._all = Columns.empty(64, asked.shape[0], asked.shape[1], policies)
        self._free = list(range(63, -1, -1))
        self._queue: list[tuple[int, int, int, float]] = []
        """(row, column, stage, when it was asked) of turns without a slot, those that asked first before the others."""

    def __len__(self) -> int:
        return len(self._all.wait) - len(self._free)

    def begin(self, sheet: Sheet, pools: list[int], now: float) -> int:
        """Take an episode in; return its row."""
        stages, room = len(sheet.waits), self._all.waits.shape
        if not self._free or stages > room[1]:
            rows = room[0] if self._free else 2 * room[0]
            self._all = self._all.grown(rows, max(room[1], stages))
            self._free = [*range(rows - 1, room[0] - 1, -1), *self._free]
        own, row = self._all, self._free.pop()
        own.prompts[row, :stages], own.replies[row, :stages] = sheet.prompts, sheet.replies
        own.waits[row, :stages], own.own[row] = sheet.waits, pools
        own.stage[row], own.stages[row], own.wait[row] = 0, stages, now
        return row

    def end(self, row: int) -> None:
        """Let another episode have the row of one that asks nothing any more."""
        self._free.append(row)

    def made(self, row: int) -> float:
        """Return the tokens that an episode under way has."""
        own = self._all
        return float(own.replies[row, : own.stage[row]].sum() - own.left[row].sum())

    def drop(self, row: int) -> None:
        """Forget an episode under way."""
        own = self._all
        held = (own.left[row] > 0) & (own.at[row] < inf)
        self._pools.leave(own.pool[row][held], own.cells[row][held])
        self._queue = [entry for entry in self._queue if entry[0] != row]
        own.left[row], own.at[row], own.wait[row] = 0.0, -inf, inf
        self._free.append(row)

    def counts(self) -> tuple[Numbers, Numbers]:
        """Return the turns of each pool that have a slot and that have none."""
        own, many = self._all, len(self._pools)
        asked, held = own.left > 0, own.at < inf
        return (
            np.bincount(own.pool[asked & held], minlength=many).astype(np.float64),
            np.bincount(own.pool[asked & ~held], minlength=many).astype(np.float64),
        )

    def stands(self) -> bool:
        """Tell whether nothing goes on by itself: all that is left to do waits for weights that no engine holds."""
        own = self._all
        live = own.left > 0
        return not bool((own.wait < inf).any() or np.isfinite(self._pools.last[own.pool[live]]).any())

    def advance(self, since: float, now: float) -> list[tuple[int, float]]:
        """Play until now; list the rows of the episodes whose last wait is over, and when it was."""
        pace = self._pools.paces(self._at_work(since, now), self._cells(now))
        ended: list[tuple[int, float]] = []
        rows: Any = slice(None)
        self._admit(since)
        while True:
            self._make(rows, now, pace)
            due = np.flatnonzero(self._all.wait <= now)
            if not len(due):
                return ended
            self.changes += int((self._all.stage[due] > 0).sum())
            due = due[np.argsort(self._all.wait[due], kind="stable")]
            last = self._all.stage[due] == self._all.stages[due]
            ended += zip(due[last].tolist(), self._all.wait[due[last]].tolist(), strict=True)
            self._all.wait[due[last]] = inf
            rows = due[~last]
            self._ask(rows)

    def _at_work(self, since: float, now: float) -> Numbers:
        """Return how many turns of each pool make tokens on average until now, as it looks by the last pace."""
        own, many, pace, span = self._all, len(self._pools), self._pools.last, now - since
        live = (own.left > 0) & (own.at < now)
        pool, at = own.pool[live], np.maximum(own.at[live], since)
        share = (np.minimum(at + own.left[live] * pace[pool], now) - at) / span
        found = np.bincount(pool, weights=share, minlength=many).astype(np.float64)
        due = np.flatnonzero((own.wait <= now) & (own.stage < own.stages))
        if len(due):
            policy = self._asked[own.stage[due] % len(self._asked)]
            pool = np.where(policy >= 0, np.take_along_axis(own.own[due], np.maximum(policy, 0), 1), 0)
            begins = own.wait[due][:, None] + own.prompts[due, own.stage[due]] / self._prefill
            replies = np.where(policy >= 0, own.replies[due, own.stage[due]], 1)  # of nobody: a pool may have no pace
            makes = np.minimum(replies * pace[pool], now - begins)
            share = np.where(policy >= 0, np.clip(makes / span, 0.0, 1.0), 0.0)
            found += np.bincount(pool.ravel(), weights=share.ravel(), minlength=many)
        return found

    def _cells(self, now: float) -> Numbers:
        """Return the cache that turns of each pool have in use which make tokens."""
        own = self._all
        live = (own.left > 0) & (own.at < now)
        found = np.bincount(own.pool[live], weights=own.cells[live] - own.left[live], minlength=len(self._pools))
        return found.astype(np.float64)

    def _make(self, rows: Any, now: float, pace: Numbers) -> None:
        """Make tokens until now; whoever has answered all that was asked lets the environment go on."""
        own = self._all
        left, at, pool = own.left[rows], own.at[rows], own.pool[rows]
        live = (left > 0) & (at < now)
        per = np.where(live, pace[pool], 1.0)
        end = np.where(live, at + left * per, inf)
        over = end <= now
        made = np.where(over, left, np.where(live, (now - at) / per, 0.0))
        self.tokens += float(made.sum())
        own.left[rows] = left = np.where(over, 0.0, left - made)
        own.at[rows] = at = np.where(over, end, np.where(live, now, at))
        if not over.any():
            return
        self.changes += int(over.sum())
        self._pools.leave(pool[over], own.cells[rows][over])
        answered = over.any(axis=1) & (left == 0).all(axis=1)
        done = np.flatnonzero(answered) if isinstance(rows, slice) else rows[answered]
        own.wait[done] = at[answered].max(axis=1) + own.waits[done, own.stage[done] - 1]
        self._admit(float(end[over].mean()))

    def _ask(self, rows: Places) -> None:
        """Begin the next stage of episodes, those whose wait was over first before the others."""
        own = self._all
        stage, now = own.stage[rows], own.wait[rows]
        own.wait[rows], own.stage[rows] = inf, stage + 1
        policy = self._asked[stage % len(self._asked)]
        asked = policy >= 0
        self.changes += int(asked.sum())
        pool = np.where(asked, np.take_along_axis(own.own[rows], np.maximum(policy, 0), 1), 0)
        own.pool[rows] = pool
        prompts, replies = own.prompts[rows, stage], np.where(asked, own.replies[rows, stage], 0.0)
        own.left[rows], own.cells[rows] = replies, prompts + replies
        at = np.full(policy.shape, -inf)
        for one in np.unique(pool[asked]).tolist():
            which = np.nonzero(asked & (pool == one))
            room = self._pools.enter(one, own.cells[rows][which]) if not self._queue else 0
            took = (which[0][:room], which[1][:room])
            at[took] = self._pools.prompts(one, now[took[0]], prompts[took])
            late = (which[0][room:], which[1][room:])
            at[late] = inf
            asked_at = now[late[0]].tolist()
            self._queue += zip(rows[late[0]].tolist(), late[1].tolist(), stage[late[0]].tolist(), asked_at, strict=True)
        own.at[rows] = at

    def _admit(self, now: float) -> None:
        """Give free slots to those that wait for one, to nobody before it was asked."""
        if not self._queue:
            return
        own, late, full = self._all, [], set()
        for row, column, stage, asked in self._queue:
            pool = int(own.pool[row, column])
            if pool in full or not self._pools.enter(pool, own.cells[row, column : column + 1]):
                full.add(pool)
                late.append((row, column, stage, asked))
                continue
            prompt = own.prompts[row, stage, column : column + 1]
            own.at[row, column] = self._pools.prompts(pool, np.array([max(now, asked)]), prompt)[0]
        self._queue = late
