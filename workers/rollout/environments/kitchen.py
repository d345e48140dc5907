"""A kitchen for two to four cooks in a row, in the manner of CuisineWorld (MindAgent, arXiv 2309.09971).

The first cook fetches onions, the last one serves; whoever stands between hands on over counters that hold one thing.
All cooks choose their next actions at the same moment and see only their own hands, the counters beside them and the
number of open orders. In each tick the cooks act in the order of the row, so that what is put down can be grabbed in
the same tick. An action that makes no sense is a wait. Orders come and expire at one of five loads, drawn by the task;
all loads are seen in training. An episode has no randomness of its own.

Score: dishes served. `collaboration_score` is CuisineWorld's CoS; the fact `cos` is one episode's part of it, so its
mean over tasks is CoS. Orders that are open at the end count as failed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from flexmarl.contracts.spec.environment import Kitchen
from workers.rollout.environments.base import Ask, Demonstration, Environment, Outcome, Reply
from workers.rollout.environments.words import SPECIALS

_NOTHING = "nothing"
_WAIT = "wait"
_THINGS = ("onion", "chopped", "soup", "plate")
_TOOLS = {2: ("cook",), 3: ("chop", "cook"), 4: ("chop", "cook", "dress")}
"""What the second to last cook do to the thing in hand, by number of cooks."""
_MADE_BY = {"chop": "chopped", "cook": "soup", "dress": "plate"}
_PROGRESS_REWARD = 0.1
"""For each useful step of one of the ordered dishes, to the cook who made it. CuisineWorld's dense reward starts so."""
_DISH_REWARD = 1.0


@dataclass(frozen=True, slots=True)
class Station:
    """What one cook can do: take a thing, perhaps change it, hand it on."""

    role: str
    take: str
    tool: str | None
    give: str
    takes: str
    """What is taken: from the pantry or from the counter before."""
    makes: str
    """What is handed on."""

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(action for action in (self.take, self.tool, self.give, _WAIT) if action)


def stations(cooks: int) -> tuple[Station, ...]:
    """Return the row of a kitchen."""
    row = [Station("cook_1", "fetch", None, "put", _THINGS[0], _THINGS[0])]
    for index, tool in enumerate(_TOOLS[cooks], start=2):
        give = "serve" if index == cooks else "put"
        row.append(Station(f"cook_{index}", "grab", tool, give, row[-1].makes, _MADE_BY[tool]))
    return tuple(row)


def collaboration_score(completed: Sequence[int], failed: Sequence[int]) -> float:
    """Return CoS: the mean share of completed orders over loads; a load without any order is left out."""
    shares = [done / (done + lost) for done, lost in zip(completed, failed, strict=True) if done + lost]
    return sum(shares) / len(shares)


class KitchenFamily:
    def __init__(self, spec: Kitchen) -> None:
        self.spec = spec
        self.row = stations(spec.cooks)
        self.roles = tuple(station.role for station in self.row)

    def vocabulary(self) -> tuple[str, ...]:
        seen = [f"{place}_{thing}" for place in ("hand", "in", "out") for thing in (_NOTHING, *_THINGS)]
        orders = [f"orders_{count}" for count in range(self.spec.dishes + 1)]
        actions = ("fetch", "grab", "put", "serve", *_MADE_BY, _WAIT)
        return (*SPECIALS, *self.roles, *seen, *orders, *actions)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        loads = Kitchen.LOADS
        return _Episode(self, loads[task_seed % len(loads)])

    def demonstrations(self, rng: random.Random, count: int) -> list[Demonstration]:
        """Return good habits in the states that habits with random slips lead to."""
        shown: list[Demonstration] = []
        while len(shown) < count:
            episode = _Episode(self, rng.choice(Kitchen.LOADS))
            while asks := episode.asks():
                replies = []
                for index, ask in enumerate(asks):
                    habit = " ".join(episode.habit(index))
                    shown.append(Demonstration(ask.role, ask.observation, habit, ask.allowed))
                    slip = " ".join(rng.choice(ask.allowed) for _ in range(ask.max_tokens))
                    replies.append(Reply(ask.role, slip if rng.random() < 0.2 else habit))
                episode.act(replies)
        return shown[:count]


class _Episode:
    def __init__(self, family: KitchenFamily, load: float) -> None:
        self._family = family
        self._load = load
        self._windows = family.spec.order_windows(load)
        self._hands = [_NOTHING] * len(family.row)
        self._counters = [_NOTHING] * (len(family.row) - 1)
        """The counter after each cook but the last."""
        self._tick = 0
        self._turn = 0
        self._served: set[int] = set()
        self._progress: dict[tuple[str, str], int] = {}
        """Useful steps so far, by role and action; only as many as there are dishes are rewarded."""
        self._rewards: dict[tuple[str, int], float] = {}

    def asks(self) -> list[Ask]:
        spec = self._family.spec
        if self._turn == spec.turns:
            return []
        row = self._family.row
        return [Ask(s.role, self._view(i), spec.actions_per_turn, s.actions) for i, s in enumerate(row)]

    def act(self, replies: list[Reply]) -> None:
        spec = self._family.spec
        plans = [reply.text.split() for reply in replies]
        for index in range(spec.actions_per_turn):
            self._tick += 1
            for cook, plan in enumerate(plans):
                if index < len(plan):
                    self._do(cook, plan[index])
        self._turn += 1

    def outcome(self) -> Outcome:
        served = len(self._served)
        orders = len(self._windows)
        own = {role: sum(r for (who, _), r in self._rewards.items() if who == role) for role in self._family.roles}
        facts = {"dishes": float(served), "cos": served / orders}
        return Outcome(own, float(served), served == orders, self._rewards, facts)

    def describe(self) -> dict[str, object]:
        windows = ", ".join(f"{first}-{last}" for first, last in self._windows)
        return {
            "title": f"Serve {len(self._windows)} dishes at load {self._load:g}",
            "facts": {"cooks": str(len(self._family.row)), "orders may be served in ticks": windows},
        }

    def habit(self, cook: int) -> list[str]:
        """Return what a sensible cook does next, trusting the neighbours to do their part."""
        station, hand, plan = self._family.row[cook], self._hands[cook], []
        for _ in range(self._family.spec.actions_per_turn):
            if hand == _NOTHING:
                plan.append(station.take)
                hand = station.takes
            elif hand == station.takes and station.tool:
                plan.append(station.tool)
                hand = station.makes
            else:
                plan.append(station.give)
                hand = _NOTHING
        return plan

    def _view(self, cook: int) -> str:
        words = [self._family.roles[cook], f"hand_{self._hands[cook]}"]
        if cook > 0:
            words.append(f"in_{self._counters[cook - 1]}")
        if cook < len(self._counters):
            words.append(f"out_{self._counters[cook]}")
        return " ".join([*words, f"orders_{len(self._open_orders(self._tick + 1))}"])

    def _open_orders(self, tick: int) -> list[int]:
        windows = enumerate(self._windows)
        return [n for n, (first, last) in windows if first <= tick <= last and n not in self._served]

    def _do(self, cook: int, action: str) -> None:
        station = self._family.row[cook]
        hand = self._hands[cook]
        if action == station.take and hand == _NOTHING:
            self._take(cook)
        elif action == station.tool and hand == station.takes:
            self._hands[cook] = station.makes
            self._reward_progress(cook, action)
        elif action == station.give and hand == station.makes:
            self._give(cook)

    def _take(self, cook: int) -> None:
        station = self._family.row[cook]
        if cook == 0:
            self._hands[cook] = station.takes
            self._reward_progress(cook, station.take)
        elif self._counters[cook - 1] != _NOTHING:
            self._hands[cook], self._counters[cook - 1] = self._counters[cook - 1], _NOTHING
            self._reward_progress(cook, station.take)

    def _give(self, cook: int) -> None:
        if cook < len(self._counters):
            if self._counters[cook] == _NOTHING:
                self._counters[cook], self._hands[cook] = self._hands[cook], _NOTHING
                self._reward_progress(cook, self._family.row[cook].give)
        elif orders := self._open_orders(self._tick):
            self._hands[cook] = _NOTHING
            self._served.add(orders[0])
            for role in self._family.roles:
                self._add(role, _DISH_REWARD)

    def _reward_progress(self, cook: int, action: str) -> None:
        key = (self._family.roles[cook], action)
        self._progress[key] = self._progress.get(key, 0) + 1
        if self._progress[key] <= len(self._windows):
            self._add(key[0], _PROGRESS_REWARD)

    def _add(self, role: str, reward: float) -> None:
        key = (role, self._turn)
        self._rewards[key] = self._rewards.get(key, 0.0) + reward
