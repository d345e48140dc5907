"""A kitchen for two to five cooks in a row, in the manner of CuisineWorld (MindAgent, arXiv 2309.09971).

The first cook fetches the ingredient an order asks for, the last one serves; whoever stands between hands on over
counters that hold one thing. All cooks see the whole kitchen and choose their next actions at the same moment. In each
tick they act in the order of the row, so that what is put down can be grabbed in the same tick. An action that makes no
sense is a wait; a dish served that nobody ordered is lost. Orders come and expire at one of five loads.

A task is a load and the dishes ordered. Where there are enough of them (several recipes), a fifth, chosen by a digest,
is held out for evaluation; otherwise all are seen in training. An episode has no randomness of its own.

Score: dishes served. `collaboration_score` is CuisineWorld's CoS; the fact `cos` is one episode's part of it, so its
mean over tasks is CoS. Orders that are open at the end count as failed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from flexmarl.contracts.specification.environment import Kitchen
from workers.rollout.environments.base import Ask, Demonstration, Environment, Family, Outcome, Reply
from workers.rollout.environments.words import SPECIALS

_NOTHING = "nothing"
_WAIT = "wait"
_KINDS = ("onion", "tomato", "fish")
_TOOLS = {2: ("cook",), 3: ("chop", "cook"), 4: ("chop", "cook", "dress"), 5: ("chop", "cook", "dress", "garnish")}
"""What the second to last cook do to the thing in hand, by number of cooks."""
_STAGE_OF = {"fetch": "{}", "chop": "chopped_{}", "cook": "{}_soup", "dress": "{}_plate", "garnish": "green_{}_plate"}
"""What a thing is called after each station."""
_PROGRESS_REWARD = 0.1
"""For each useful step of one of the ordered dishes, to the cook who made it. CuisineWorld's dense reward starts so."""
_DISH_REWARD = 1.0
_FEWEST_TASKS_TO_SPLIT = 40
_HELD_OUT_ONE_IN = 5


@dataclass(frozen=True, slots=True)
class Station:
    """What one cook can do: take a thing, perhaps change it, hand it on."""

    role: str
    take: tuple[str, ...]
    tool: str | None
    give: str
    takes: str
    """Stage of what is taken: from the pantry or from the counter before."""
    makes: str
    """Stage of what is handed on."""

    @property
    def actions(self) -> tuple[str, ...]:
        return (*self.take, *((self.tool,) if self.tool else ()), self.give, _WAIT)


@dataclass(frozen=True, slots=True)
class Thing:
    kind: str
    stage: str

    @property
    def word(self) -> str:
        return _STAGE_OF[self.stage].format(self.kind)


def stations(cooks: int, kinds: Sequence[str] = _KINDS) -> tuple[Station, ...]:
    """Return the row of a kitchen."""
    row = [Station("cook_1", tuple(f"fetch_{kind}" for kind in kinds), None, "put", "fetch", "fetch")]
    for index, tool in enumerate(_TOOLS[cooks], start=2):
        give = "serve" if index == cooks else "put"
        row.append(Station(f"cook_{index}", ("grab",), tool, give, row[-1].makes, tool))
    return tuple(row)


def collaboration_score(completed: Sequence[int], failed: Sequence[int]) -> float:
    """Return CoS: the mean share of completed orders over loads; a load without any order is left out."""
    shares = [done / (done + lost) for done, lost in zip(completed, failed, strict=True) if done + lost]
    return sum(shares) / len(shares)


class KitchenFamily(Family[Kitchen]):
    Options = Kitchen

    def __init__(self, spec: Kitchen) -> None:
        super().__init__(spec)
        self.spec = spec
        self.kinds = _KINDS[: spec.recipes]
        self.row = stations(spec.cooks, self.kinds)
        self.roles = tuple(station.role for station in self.row)

    def vocabulary(self) -> tuple[str, ...]:
        stages = ("fetch", *_TOOLS[self.spec.cooks])
        things = [Thing(kind, stage).word for kind in self.kinds for stage in stages]
        actions = dict.fromkeys(action for station in self.row for action in station.actions)
        return (*SPECIALS, *self.roles, _NOTHING, *things, "counter", "orders", *actions)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        task = random.Random(task_seed)
        load, kinds = self._draw(task)
        while self._splits() and self._is_held_out(load, kinds) != held_out:
            load, kinds = self._draw(task)
        return _Episode(self, load, kinds)

    def demonstrations(self, rng: random.Random, count: int) -> list[Demonstration]:
        """Return good habits in the states that habits with random slips lead to."""
        shown: list[Demonstration] = []
        while len(shown) < count:
            episode = self.make(rng.getrandbits(63), False, rng)
            assert isinstance(episode, _Episode)
            while asks := episode.asks():
                replies = []
                for index, ask in enumerate(asks):
                    habit = " ".join(episode.habit(index))
                    shown.append(Demonstration(ask.role, ask.observation, habit, ask.allowed))
                    slip = " ".join(rng.choice(ask.allowed) for _ in range(ask.max_tokens))
                    replies.append(Reply(ask.role, slip if rng.random() < 0.2 else habit))
                episode.act(replies)
        return shown[:count]

    def _draw(self, task: random.Random) -> tuple[float, tuple[str, ...]]:
        return task.choice(Kitchen.LOADS), tuple(task.choice(self.kinds) for _ in range(self.spec.dishes))

    def _splits(self) -> bool:
        return bool(len(Kitchen.LOADS) * len(self.kinds) ** self.spec.dishes >= _FEWEST_TASKS_TO_SPLIT)

    @staticmethod
    def _is_held_out(load: float, kinds: tuple[str, ...]) -> bool:
        return sha256(f"{load:g} {' '.join(kinds)}".encode()).digest()[0] % _HELD_OUT_ONE_IN == 0


class _Episode:
    def __init__(self, family: KitchenFamily, load: float, ordered: tuple[str, ...]) -> None:
        self._family = family
        self._load = load
        self._ordered = ordered
        self._windows = family.spec.order_windows(load)
        self._hands: list[Thing | None] = [None] * len(family.row)
        self._counters: list[Thing | None] = [None] * (len(family.row) - 1)
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
        seen = self._view()
        return [Ask(s.role, f"{s.role} {seen}", spec.actions_per_turn, s.actions) for s in self._family.row]

    def act(self, replies: list[Reply]) -> None:
        plans = [reply.text.split() for reply in replies]
        for index in range(self._family.spec.actions_per_turn):
            self._tick += 1
            for cook, plan in enumerate(plans):
                if index < len(plan):
                    self._do(cook, plan[index])
        self._turn += 1

    def outcome(self) -> Outcome:
        served, orders = len(self._served), len(self._windows)
        own = {role: sum(r for (who, _), r in self._rewards.items() if who == role) for role in self._family.roles}
        facts = {"dishes": float(served), "cos": served / orders}
        return Outcome(own, float(served), served == orders, self.turn_rewards(), facts)

    def turn_rewards(self) -> dict[tuple[str, int], float]:
        """Return what cooks got for steps and dishes, so far."""
        return dict(self._rewards)

    def describe(self) -> dict[str, object]:
        windows = zip(self._ordered, self._windows, strict=True)
        orders = ", ".join(f"{kind} in ticks {first}-{last}" for kind, (first, last) in windows)
        facts = {"cooks": str(len(self._family.row)), "orders": orders}
        return {"title": f"Serve {' and '.join(self._ordered)} at load {self._load:g}", "facts": facts}

    def habit(self, cook: int) -> list[str]:
        """Return what a sensible cook does next, trusting the neighbours to do their part."""
        station, hand, plan = self._family.row[cook], self._hands[cook], []
        missing = self._missing()
        wanted = [self._ordered[order] for order in self._open_orders(self._tick + 1)]
        for _ in range(self._family.spec.actions_per_turn):
            if hand is None and cook == 0:
                plan.append(f"fetch_{missing[0]}" if missing else _WAIT)
                hand = Thing(missing.pop(0), station.makes) if missing else None
            elif hand is None:
                before = self._counters[cook - 1] or self._hands[cook - 1]
                plan.append(station.take[0])
                hand = Thing(before.kind, station.takes) if before else None
            elif hand.stage != station.makes:
                plan.append(str(station.tool))
                hand = Thing(hand.kind, station.makes)
            elif station.give == "serve" and hand.kind not in wanted:
                plan.append(_WAIT)
            else:
                plan.append(station.give)
                hand = None
        return plan

    def _missing(self) -> list[str]:
        """Return the kinds of open orders that nobody works on."""
        under_way = [thing.kind for thing in (*self._hands, *self._counters) if thing]
        missing = []
        for order in self._open_orders(self._tick + 1):
            kind = self._ordered[order]
            if kind in under_way:
                under_way.remove(kind)
            else:
                missing.append(kind)
        return missing

    def _view(self) -> str:
        """Name hands and counters along the row, then the open orders, oldest first."""
        words = []
        for cook, hand in enumerate(self._hands):
            words.append(hand.word if hand else _NOTHING)
            if cook < len(self._counters):
                counter = self._counters[cook]
                words += ["counter", counter.word if counter else _NOTHING]
        orders = [self._ordered[order] for order in self._open_orders(self._tick + 1)]
        return " ".join([*words, "orders", *(orders or [_NOTHING])])

    def _open_orders(self, tick: int) -> list[int]:
        windows = enumerate(self._windows)
        return [n for n, (first, last) in windows if first <= tick <= last and n not in self._served]

    def _do(self, cook: int, action: str) -> None:
        station, hand = self._family.row[cook], self._hands[cook]
        if action in station.take and hand is None:
            self._take(cook, action)
        elif hand is not None and action == station.tool and hand.stage == station.takes:
            self._hands[cook] = Thing(hand.kind, station.makes)
            self._reward_progress(cook, action)
        elif hand is not None and action == station.give and hand.stage == station.makes:
            self._give(cook, hand)

    def _take(self, cook: int, action: str) -> None:
        if cook == 0:
            kind = action.removeprefix("fetch_")
            if kind in self._missing():
                self._reward_progress(cook, "fetch")
            self._hands[cook] = Thing(kind, "fetch")
        elif self._counters[cook - 1] is not None:
            self._hands[cook], self._counters[cook - 1] = self._counters[cook - 1], None
            self._reward_progress(cook, action)

    def _give(self, cook: int, hand: Thing) -> None:
        if cook < len(self._counters):
            if self._counters[cook] is None:
                self._counters[cook], self._hands[cook] = hand, None
                self._reward_progress(cook, "put")
            return
        self._hands[cook] = None
        asked = [order for order in self._open_orders(self._tick) if self._ordered[order] == hand.kind]
        if asked:
            self._served.add(asked[0])
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
