"""From one cohort to the next: by arithmetic, and never above any schedule of a few replies that is gone through."""

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.simulator.search.turnovers import EngineCapacity, EpisodeDemand, GroupDemand, turnover

BATCH, SLOTS = 4.0, 3


def near(one: float, other: float) -> bool:
    return abs(one - other) < 1e-6


def engines(many: float, slots: int = SLOTS) -> EngineCapacity:
    return EngineCapacity(many, BATCH, slots)


def group(gradient: float, *chains: float) -> GroupDemand:
    return GroupDemand(tuple(EpisodeDemand(0.0, chain, 0.0) for chain in chains), gradient)


def test_the_longest_episode_its_gradient_and_what_follows_add_up():
    alone = [group(4.0, 10.0, 1.0), group(2.0, 3.0)]
    assert near(turnover(alone, engines(99), 2, 5.0), 10.0 + 4.0 / 2 + 5.0)
    assert near(turnover(alone[:1], engines(99), 1, 5.0), 10.0 + 4.0 + 5.0)


def test_gradients_of_groups_that_settle_late_queue_behind_each_other():
    late = [group(6.0, 10.0), group(6.0, 9.0), group(6.0, 1.0)]
    assert near(turnover(late, engines(99), 1, 0.0), 9.0 + 12.0)
    assert near(turnover(late, engines(99), 3, 0.0), 9.0 + 4.0)


def test_replies_that_do_not_fit_beside_each_other_slow_each_other_down():
    # Two of one length on one engine: both go on at 1 / (1 + 1 / 4) of the pace.
    assert near(turnover([group(0.0, 8.0, 8.0)], engines(1), 1, 0.0), 10.0)
    # Six on an engine of three slots: two rounds at 1 / (1 + 2 / 4), or a mixture of as much.
    assert near(turnover([group(0.0, *[8.0] * 6)], engines(1), 1, 0.0), 24.0)
    # Of two engines one is for the long one alone, for which the six others leave room.
    assert near(turnover([group(0.0, 20.0, *[2.0] * 6)], engines(2), 1, 0.0), 20.0)


def test_replies_beside_the_path_take_room_and_waits_take_none():
    busy = [GroupDemand((EpisodeDemand(3.0, 5.0, 40.0),), 0.0)]
    assert near(turnover(busy, engines(8), 1, 1.0), 8.0 + 1.0)
    assert turnover(busy, engines(1), 1, 1.0) > 20.0 + 1.0


@settings(max_examples=40, deadline=None)
@given(
    first=st.floats(0.0, 1.0), second=st.floats(0.0, 1.0), part=st.floats(0.0, 1.0),
    batch=st.floats(0.1, 100.0), slots=st.integers(1, 300),
)  # fmt: skip
def test_a_steady_pace_takes_least(first: float, second: float, part: float, batch: float, slots: int):
    capacity = EngineCapacity(1.0, batch, slots)
    apart = capacity.least_share(np.array([first, second])) @ np.array([part, 1.0 - part])
    steady = capacity.least_share(np.array([first * part + second * (1.0 - part)]))[0]
    assert steady <= apart + 1e-9
    for together in range(1, min(slots, 20) + 1):  # every batch that there can be takes as much as the model says
        pace = 1.0 / (1.0 + (together - 1) / batch)
        assert capacity.least_share(np.array([pace]))[0] <= 1.0 / together + 1e-9


def schedules(lengths: list[float], many: int) -> Iterator[list[float]]:
    """Go through when replies end: every placement on engines, every order there, and every limit of them at once."""
    for placed in product(range(many), repeat=len(lengths)):
        own = [[one for one, engine in enumerate(placed) if engine == number] for number in range(many)]
        for orders in product(*(permutations(one) for one in own)):
            for limit in range(1, SLOTS + 1):
                ends = [0.0] * len(lengths)
                for order in orders:
                    _play(lengths, list(order), limit, ends)
                yield ends


def _play(lengths: list[float], waiting: list[int], limit: int, ends: list[float]) -> None:
    now, left = 0.0, {}
    while waiting or left:
        while waiting and len(left) < limit:
            one = waiting.pop(0)
            left[one] = lengths[one]
        slower = 1.0 + (len(left) - 1) / BATCH
        shortest = min(left.values())
        now += shortest * slower
        left = {one: rest - shortest for one, rest in left.items()}
        for one in [one for one, rest in left.items() if rest < 1e-12]:
            ends[one] = now
            del left[one]


def _trained(groups: list[tuple[list[int], float]], ends: list[float]) -> float:
    """Return when one device has computed the gradients, in the order in which groups settle."""
    now = 0.0
    for settled, gradient in sorted((max(ends[one] for one in members), gradient) for members, gradient in groups):
        now = max(now, settled) + gradient
    return now


@pytest.mark.parametrize("many", [1, 2, 3])
@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.floats(0.1, 20.0), min_size=4, max_size=4),
    gradients=st.tuples(st.floats(0.0, 8.0), st.floats(0.0, 8.0)),
)
def test_no_schedule_of_four_replies_is_faster(many: int, lengths: list[float], gradients: tuple[float, float]):
    groups = [([0, 1], gradients[0]), ([2, 3], gradients[1])]
    demands = [group(gradient, *(lengths[one] for one in members)) for members, gradient in groups]
    best = min(_trained(groups, ends) for ends in schedules(lengths, many)) + 2.0
    bound = turnover(demands, engines(many), 1, 2.0)
    assert bound <= best * (1 + 1e-9)
    assert bound >= 0.55 * best, "it says more than nothing"
