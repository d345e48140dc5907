"""The offset between a node's clock and the database's, from answers that carry the database's time."""

from dataclasses import dataclass

import pytest

from workers.nodes.clock import SAMPLES, ClockOffset


@dataclass
class Answer:
    at: float


class World:
    """A clock that everybody agrees on, and this machine's, which is behind it."""

    def __init__(self, behind_s: float) -> None:
        self.now, self.behind_s = 1000.0, behind_s
        self.clock = ClockOffset(lambda: self.now - self.behind_s, lambda: self.now)

    def ask(self, there_s: float, back_s: float, tells: bool = True) -> None:
        def request() -> Answer:
            self.now += there_s
            answer = Answer(self.now if tells else 0.0)
            self.now += back_s
            return answer

        self.clock.timed(request)


@pytest.mark.parametrize("behind_s", [0.0, 2.5, -40.0])
def test_the_shortest_round_trip_counts(behind_s: float) -> None:
    world = World(behind_s)
    assert world.clock.facts() == {}
    world.ask(0.9, 0.1)
    assert world.clock.facts() == {"clock_offset_s": round(behind_s + 0.4, 3), "clock_round_trip_s": 1.0}
    world.ask(0.02, 0.02)
    world.ask(0.1, 0.9)
    assert world.clock.facts() == {"clock_offset_s": behind_s, "clock_round_trip_s": 0.04}


def test_a_clock_that_was_set_is_seen_when_the_samples_before_are_old() -> None:
    world = World(5.0)
    world.ask(0.01, 0.01)
    world.behind_s = 0.0
    for _ in range(SAMPLES):
        world.ask(0.05, 0.05)
    assert world.clock.facts()["clock_offset_s"] == 0.0


def test_an_answer_without_a_time_is_no_sample() -> None:
    world = World(5.0)
    world.ask(0.01, 0.01, tells=False)
    assert world.clock.facts() == {}
