"""Which stages share devices in turns, and which have their own: planned from profiles. Pure.

A stage graph is cut in two, again and again; each half is placed by the same rule. Two halves take turns on all devices
(temporal), paying for the switch, or each has its own and works on one part of the batch while the other works on the
next (spatial): the parts' way through both, and then once more the slower half for every further part. Invariants: a
part passes stages in the order of their edges; the best plan of a set of stages does not depend on how it was reached.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Literal, NamedTuple

Mode = Literal["temporal", "spatial", "hybrid"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage takes for a whole batch."""

    work_s: float
    """Divided by its devices."""
    least_s: float = 0.0
    """What no number of devices shortens, such as the longest reply."""
    close_s: float = 0.0
    """Once, behind its last part: an optimizer step, say."""
    switch_s: float = 0.0
    """To leave devices to others and to take them again."""
    most: int = 1_000_000
    """Devices that it can use."""

    def seconds(self, devices: int) -> float:
        """Return what it takes on so many devices, without its close."""
        return self.least_s + self.work_s / min(devices, self.most)


@dataclass(frozen=True, slots=True)
class Leaf:
    stage: str
    devices: int


@dataclass(frozen=True, slots=True)
class DeviceSplit:
    """Two halves: in turns on the same devices, or apart on their own."""

    shared: bool
    first: "Placed"
    then: "Placed"


Placed = Leaf | DeviceSplit


class Cost(NamedTuple):
    """What a plan takes, and a part's way through it while others are on theirs."""

    whole: float
    through: float
    """Of one part."""
    each: float
    """From one part to the next."""
    close: float
    """Behind the last part."""


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    placed: Placed
    seconds: float
    """Of a batch."""
    parts: int

    @property
    def mode(self) -> Mode:
        """Tell how its cuts are made."""
        kinds = {cut.shared for cut in _cuts(self.placed)}
        return "hybrid" if len(kinds) == 2 else "spatial" if kinds == {False} else "temporal"

    def devices(self) -> dict[str, int]:
        """Return the devices of every stage; those of stages that share are the same ones."""
        return {leaf.stage: leaf.devices for leaf in _leaves(self.placed)}

    def beside(self, one: str, other: str) -> bool:
        """Tell whether two stages have their devices in turns."""
        for cut in _cuts(self.placed):
            sides = [{leaf.stage for leaf in _leaves(half)} for half in (cut.first, cut.then)]
            if (one in sides[0] and other in sides[1]) or (other in sides[0] and one in sides[1]):
                return cut.shared
        return False


def plan_placement(
    stages: Mapping[str, Stage],
    edges: frozenset[tuple[str, str]],
    devices: int,
    parts: int,
    mode: Literal["temporal", "spatial"] | None = None,
) -> PlacementPlan | None:
    """Place a stage graph on devices so that a batch of so many parts takes least; None: there are too few devices.

    `mode` allows cuts of one kind alone. Raises ValueError for a graph without stages, with cycles or unknown stages.
    """
    if not stages or parts < 1 or {name for edge in edges for name in edge} - set(stages):
        raise ValueError("placed are one or more stages, in one or more parts, with edges among them")
    _refuse_cycles(frozenset(stages), edges)
    kinds = {"temporal": (True,), "spatial": (False,)}.get(mode or "", (True, False))

    @cache
    def best(names: frozenset[str], count: int, piped: bool) -> tuple[Cost, Placed] | None:
        if len(names) == 1:
            (name,) = names
            stage = stages[name]
            took = stage.seconds(count)
            return Cost(took + stage.close_s, took / parts, took / parts, stage.close_s), Leaf(name, count)
        found = [one for first in _heads(names, edges) for kind in kinds for one in joined(names, first, count, kind)]
        return min(found, key=lambda one: _order(one[0], piped), default=None)

    def joined(names: frozenset[str], first: frozenset[str], count: int, shared: bool) -> Iterator[tuple[Cost, Placed]]:
        """Cut into `first` and the rest, in one way or with every split of the devices."""
        rest = names - first
        for own in [count] if shared else range(1, count):
            one, two = best(first, own, not shared), best(rest, count if shared else count - own, not shared)
            if one is not None and two is not None:
                switch = sum(stages[name].switch_s for name in names) if shared else 0.0
                cost = _in_turns(one[0], two[0], switch) if shared else _apart(one[0], two[0], parts)
                yield cost, DeviceSplit(shared, one[1], two[1])

    found = best(frozenset(stages), devices, False) if devices > 0 else None
    return None if found is None else PlacementPlan(found[1], found[0].whole, parts)


def one_more(rollout: Stage, training: Stage, engines: int, trainers: int) -> bool:
    """Tell whether rollout should get one more device: it lags behind training by more than that would gain.

    Replies grow while a policy learns, so a split that was right is asked again with what was measured since.
    """
    gain = rollout.seconds(engines) - rollout.seconds(engines + 1)
    return gain > 0.0 and rollout.seconds(engines) - training.seconds(trainers) - training.close_s >= gain


def _in_turns(one: Cost, two: Cost, switch: float) -> Cost:
    part = one.each + two.each + switch
    return Cost(one.whole + two.whole + switch, part, part, one.close + two.close)


def _apart(one: Cost, two: Cost, parts: int) -> Cost:
    through, each, close = one.through + two.through, max(one.each, two.each), max(one.close, two.close)
    return Cost(through + (parts - 1) * each + close, through, each, close)


def _order(cost: Cost, piped: bool) -> tuple[float, float]:
    return (cost.each, cost.through) if piped else (cost.whole, cost.each)


def _heads(names: frozenset[str], edges: frozenset[tuple[str, str]]) -> Iterator[frozenset[str]]:
    """List the sets of stages that nothing outside of them has to come before: where a graph can be cut."""
    inside = [(one, other) for one, other in edges if one in names and other in names]
    for size in range(1, len(names)):
        for chosen in combinations(sorted(names), size):
            head = frozenset(chosen)
            if all(one in head for one, other in inside if other in head):
                yield head


def _refuse_cycles(names: frozenset[str], edges: frozenset[tuple[str, str]]) -> None:
    left = names
    while left:
        free = {name for name in left if not any(other == name and one in left for one, other in edges)}
        if not free:
            raise ValueError(f"{', '.join(sorted(left))} wait for one another: make one stage of them")
        left -= free


def _cuts(placed: Placed) -> Iterator[DeviceSplit]:
    if isinstance(placed, DeviceSplit):
        yield placed
        yield from _cuts(placed.first)
        yield from _cuts(placed.then)


def _leaves(placed: Placed) -> Iterator[Leaf]:
    if isinstance(placed, Leaf):
        yield placed
    else:
        yield from _leaves(placed.first)
        yield from _leaves(placed.then)
