"""Engines of which whole steps can be told: who joins when, what a step takes, and what is left of dropped requests."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.stepping import SteppedEngine
from flexmarl.simulator.devices.trace import DeviceTenure, Trace
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.scenarios.scenario import EngineModel

MODEL = EngineModel(token=0.01, batch=10.0, prefill=1000.0, slots=4, stepped=True)
"""A step takes 10 ms, 1 ms more for each request beyond the first, and 1 ms more for each prompt token."""


class Table:
    """An engine, and when each of its turns ended."""

    def __init__(self, model: EngineModel = MODEL) -> None:
        self.clock, self.trace = Clock(), Trace()
        self.trace.held[1] = DeviceTenure(1, "engine", 0.0)
        self.engine = SteppedEngine(self.clock, self.trace, model, 1)
        self.ended: dict[str, float] = {}
        for policy in ("a", "b"):
            self.engine.serve(policy, 1, ())

    def turn(self, name: str, reply: int, prompt: float = 0.0, policy: str = "a", scale: float = 1.0) -> SimulatedTurn:
        return SimulatedTurn(policy, 1, "", prompt, reply, lambda _: self._end(name), scale=scale)

    def _end(self, name: str) -> None:
        self.ended[name] = self.clock.now

    def ask(self, when: float, *turns: SimulatedTurn) -> None:
        for turn in turns:
            self.clock.at(when, self.engine.ask, turn)

    def play(self, at: float | None = None, then: Callable[[], None] = lambda: None) -> dict[str, float]:
        if at is not None:
            self.clock.at(at, then)
        while self.clock.step():
            pass
        return self.ended


def test_requests_that_come_together_begin_together_behind_their_prompts() -> None:
    table = Table()
    table.ask(1.0, table.turn("x", 1, prompt=3), table.turn("y", 2, prompt=2))
    assert table.play() == pytest.approx({"x": 1.016, "y": 1.026})  # 2 requests: 11 ms and 5 of prompts; then one
    assert [(one.began, one.ended) for one in table.trace.until(2.0)] == [pytest.approx((1.0, 1.026))]
    assert table.engine.made() == 3


def test_who_comes_meanwhile_waits_for_the_next_step_and_makes_it_longer() -> None:
    table = Table()
    table.ask(0.0, table.turn("x", 3))
    table.ask(0.004, table.turn("y", 1, prompt=5))
    assert table.play() == pytest.approx({"x": 0.036, "y": 0.026})


def test_each_set_of_weights_makes_a_step_of_its_own_as_long_as_its_policy_takes() -> None:
    table = Table()
    table.ask(0.0, table.turn("x", 1), table.turn("y", 1, policy="b", scale=3.0))
    assert table.play() == pytest.approx({"x": 0.04, "y": 0.04})


def test_policies_that_take_as_long_make_steps_of_their_own_too() -> None:
    table = Table()
    table.ask(0.0, table.turn("x", 1), table.turn("y", 1, policy="b"))
    assert table.play() == pytest.approx({"x": 0.02, "y": 0.02})  # together they would take 11 ms


def test_a_reply_that_was_begun_elsewhere_makes_what_is_left_behind_what_it_had() -> None:
    table = Table()
    begun = table.turn("x", 5, prompt=2)
    begun.made, begun.version = 3.0, 1
    table.ask(0.0, begun)
    assert table.play() == pytest.approx({"x": 0.01 + 0.005 + 0.01})  # its prompt and its three tokens are computed


def test_a_slow_engine_computes_prompts_slowly() -> None:
    table = Table()
    table.engine.slow(3.0)
    table.ask(0.0, table.turn("x", 1, prompt=5))
    assert table.play() == pytest.approx({"x": 3.0 * (0.01 + 0.005)})


def test_who_has_no_slot_begins_with_the_step_behind_the_first_that_ends() -> None:
    table = Table()
    table.ask(0.0, *[table.turn(name, 1 if name == "0" else 2) for name in "01234"])
    ended = table.play()
    assert (ended["0"], ended["1"], ended["4"]) == pytest.approx((0.013, 0.026, 0.036))


def test_an_engine_that_gets_slower_ends_its_step_slower_as_well() -> None:
    table = Table()
    table.ask(0.0, table.turn("x", 2))
    assert table.play(0.005, lambda: table.engine.slow(2.0)) == pytest.approx({"x": 0.005 + 0.01 + 0.02})


def test_a_dropped_reply_keeps_whole_tokens_and_leaves_nothing_behind() -> None:
    table = Table()
    gone, stays = table.turn("gone", 9), table.turn("stays", 2)
    table.ask(0.0, gone, stays)
    assert table.play(0.015, lambda: table.engine.drop(gone)) == pytest.approx({"stays": 0.022})
    assert (gone.made, gone.engine, table.engine.running, table.engine.waiting) == (1.0, None, 0, 0)


def test_a_request_that_is_dropped_before_it_begins_costs_nothing() -> None:
    table = Table()
    late = table.turn("late", 1, prompt=100)
    table.ask(0.0, table.turn("x", 2))
    table.ask(0.004, late)
    assert table.play(0.006, lambda: table.engine.drop(late)) == pytest.approx({"x": 0.02})
    assert table.engine.asked["a"] == 0


@pytest.mark.parametrize(
    "other", [{"cell": 1e-6}, {"compute": 1e-3}, {"mixed": 1.5}, {"replicas": 2}, {"cache": "grown"}]
)
def test_what_only_flowing_replies_have_is_refused_with_whole_steps(other: dict[str, Any]) -> None:
    assert EngineModel(**other).stepped is False
    with pytest.raises(ValidationError, match=f"stepped.*{next(iter(other))}|{next(iter(other))} is of engines"):
        EngineModel(stepped=True, **other)
