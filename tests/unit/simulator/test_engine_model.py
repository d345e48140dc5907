"""The model of an engine against arithmetic that can be done by hand."""

from types import SimpleNamespace

import pytest

from flexmarl.simulator.devices.batch import seconds_of, steps_of
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.devices.trace import Trace
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.rollout.playing import RolloutModel
from flexmarl.simulator.scenarios.scenario import EngineModel

MODEL = EngineModel(token=0.01, batch=10.0, prefill=1000.0, slots=4)


class Bench:
    def __init__(self, model: EngineModel = MODEL) -> None:
        self.clock, self.trace = Clock(), Trace()
        self.engine = SimulatedEngine(self.clock, self.trace, model, 1)
        self.ended: dict[str, float] = {}
        self.serve(0)

    def serve(self, version: int, keeps: tuple[int, ...] = ()) -> None:
        self.engine.serve("a", version, keeps)

    def turn(self, name: str, reply: int, prompt: float = 0.0, version: int = 0, follow: str = "") -> SimulatedTurn:
        def done(turn: SimulatedTurn) -> None:
            self.ended[name] = self.clock.now

        return SimulatedTurn("a", version, follow, prompt, reply, done)

    def ask(self, name: str, reply: int, prompt: float = 0.0, version: int = 0, follow: str = "") -> SimulatedTurn:
        turn = self.turn(name, reply, prompt, version, follow)
        self.engine.ask(turn)
        return turn

    def play(self) -> dict[str, float]:
        while self.clock.step():
            pass
        return self.ended


def test_a_reply_alone_takes_its_prompt_and_one_step_per_token():
    bench = Bench()
    bench.ask("one", reply=100, prompt=500)
    assert bench.play() == pytest.approx({"one": 0.5 + 100 * 0.01})


def test_a_neighbour_slows_each_step_while_it_is_there():
    bench = Bench()
    bench.ask("long", reply=100)
    bench.ask("short", reply=50)
    both = 50 * 0.01 * 1.1
    assert bench.play() == pytest.approx({"short": both, "long": both + 50 * 0.01})
    assert bench.engine.made() == pytest.approx(150)


def test_who_finds_no_slot_waits_for_one():
    bench = Bench(MODEL.model_copy(update={"slots": 1}))
    bench.ask("one", reply=100)
    bench.ask("two", reply=100)
    assert (bench.engine.running, bench.engine.waiting) == (1, 1)
    assert bench.play() == pytest.approx({"one": 1.0, "two": 2.0})


def test_who_does_not_fit_into_the_cache_waits_for_room():
    bench = Bench(MODEL.model_copy(update={"kv_tokens": 250.0}))
    for name in ("one", "two", "three", "four"):
        bench.ask(name, reply=100, prompt=0)
    assert (bench.engine.running, bench.engine.waiting) == (2, 2)
    both = 100 * 0.011
    assert bench.play() == pytest.approx({"one": both, "two": both, "three": 2 * both, "four": 2 * both})


def test_a_dropped_turn_leaves_nothing_behind():
    bench = Bench()
    gone, stays = bench.ask("gone", reply=100), bench.ask("stays", reply=100)
    bench.clock.at(0.55, bench.engine.drop, gone)
    assert bench.play() == pytest.approx({"stays": 0.55 + 50 * 0.01})
    assert gone.made == pytest.approx(50)
    assert (stays.phase, bench.engine.running) == ("ended", 0)


def test_a_turn_that_moved_goes_on_with_the_tokens_it_has():
    bench = Bench()
    other = SimulatedEngine(bench.clock, bench.trace, MODEL, 2)
    other.serve("a", 0, ())
    turn = bench.ask("moved", reply=100, prompt=100)

    def move() -> None:
        bench.engine.drop(turn)
        other.ask(turn)

    bench.clock.at(0.1 + 0.4, move)  # 40 tokens are made
    assert bench.play() == pytest.approx({"moved": 0.5 + 0.14 + 0.6})  # its prompt and they are computed again


@pytest.mark.parametrize(
    ("follow", "segments", "end"),
    [
        ("continue", (0, 40), 0.1 + 1.0),
        ("resume", (0, 40), 0.1 + 0.4 + 0.14 + 0.6),
        ("restart_turn", (), 0.1 + 0.4 + 0.1 + 1.0),
    ],
)
def test_new_weights_take_a_running_reply_over(follow: str, segments: tuple[int, ...], end: float):
    bench = Bench()
    turn = bench.ask("one", reply=100, prompt=100, follow=follow)
    bench.clock.at(0.5001, bench.serve, 1)
    assert bench.play()["one"] == pytest.approx(end, abs=0.01)
    assert (turn.segments, turn.version) == (segments, 1)


def test_a_reply_that_moved_and_was_taken_over_twice_says_who_made_what():
    bench = Bench()
    other = SimulatedEngine(bench.clock, bench.trace, MODEL, 2)
    other.serve("a", 2, ())
    turn = bench.ask("one", reply=100, follow="continue")
    bench.clock.at(0.2, bench.serve, 1)  # 20 tokens are made

    def move() -> None:
        bench.engine.drop(turn)
        other.ask(turn)

    bench.clock.at(0.505, move)
    assert "one" in bench.play()
    assert (turn.segments, turn.version) == ((0, 20, 1, 30), 2)


def test_a_token_that_is_half_made_is_made_again_by_new_weights():
    bench = Bench()
    bench.ask("one", reply=100, follow="resume")
    bench.clock.at(0.405, bench.serve, 1)
    prompt = 40 / 1000.0
    assert bench.play() == pytest.approx({"one": 0.405 + prompt + 60 * 0.01})


@pytest.mark.parametrize(("follow", "left"), [("restart_turn", (0.0, ())), ("resume", (40.0, (0, 40)))])
def test_a_reply_that_is_handed_back_begins_anew_only_where_turns_are_restarted(follow: str, left: tuple[object, ...]):
    turn, routed = Bench().turn("one", reply=100, follow=follow), []
    turn.made, turn.segments = 40.0, (0, 40)
    RolloutModel.hand_back(SimpleNamespace(_route=routed.append), turn)
    assert (routed, (turn.made, turn.segments)) == ([turn], left)


def test_what_is_expected_of_an_engine_is_what_has_not_ended_there():
    bench = Bench(MODEL.model_copy(update={"slots": 2}))
    ends, drops, waits = (bench.turn(name, reply=100, prompt=200) for name in ("ends", "drops", "waits"))
    for turn, expected in ((ends, 100.0), (drops, 70.0), (waits, 40.0)):
        turn.expected = expected
        bench.engine.ask(turn)
    assert (bench.engine.load.tokens, bench.engine.cached()) == (210.0, 400)
    bench.engine.drop(drops)
    assert (bench.engine.load.tokens, bench.engine.running, waits.phase) == (140.0, 2, "prompt")
    bench.play()
    assert bench.engine.load.tokens == 0.0


def test_old_weights_are_held_for_those_that_pin_them():
    bench = Bench()
    bench.serve(1)
    pinned = bench.turn("old", 10)
    assert bench.engine.held.answering(pinned) == 0
    bench.serve(2, keeps=(1,))
    assert bench.engine.held.answering(pinned) is None
    assert bench.engine.held.answering(bench.turn("kept", 10, version=1)) == 1
    assert bench.engine.held.answering(bench.turn("follows", 10, version=1, follow="continue")) == 2


def test_it_generates_from_the_first_to_the_last_token():
    bench = Bench()
    bench.ask("one", reply=10, prompt=100)
    bench.play()
    (interval,) = bench.trace.until(9.0)
    assert (interval.kind, interval.began, interval.ended) == ("rollout", pytest.approx(0.1), pytest.approx(0.2))
    assert interval.tokens == pytest.approx(10)


def test_a_shorter_reply_that_comes_later_ends_first():
    bench = Bench()
    bench.ask("long", reply=100)
    bench.clock.at(0.2, bench.ask, "short", 10)
    both = 10 * 0.011
    assert bench.play() == pytest.approx({"short": 0.2 + both, "long": 0.2 + both + 70 * 0.01})


def test_who_comes_back_while_its_prompt_was_computed_begins_anew():
    bench = Bench()
    turn = bench.ask("one", reply=10, prompt=500)
    bench.ask("two", reply=10, prompt=500)

    def back() -> None:
        bench.engine.drop(turn)
        bench.engine.ask(turn)

    bench.clock.at(0.25, back)  # behind what is computed, and was to be
    assert bench.play()["one"] == pytest.approx(1.5 + 10 * 0.01)


def test_a_device_may_stand_for_many_engines():
    bench = Bench(MODEL.model_copy(update={"replicas": 4, "slots": 2}))
    for number in range(9):
        bench.ask(str(number), reply=100)
    assert (bench.engine.running, bench.engine.waiting) == (8, 1)
    both = 100 * 0.011
    assert bench.play() == pytest.approx({str(n): both for n in range(8)} | {"8": both + 1.0})


def test_replies_are_slower_while_a_prompt_is_computed_and_a_slow_device_slows_both():
    bench = Bench(MODEL.model_copy(update={"mixed": 3.0}))
    bench.ask("first", reply=100)
    bench.clock.at(0.4, bench.ask, "second", 1, 300.0)  # 0.3 s of prompt, in which 10 tokens are made
    assert bench.play() == pytest.approx({"first": 0.4 + 0.3 + 0.5 + 0.01, "second": 0.4 + 0.3 + 0.02}, rel=0.02)
    assert bench.engine.pace == 1.0
    slow = Bench(MODEL.model_copy(update={"mixed": 3.0}))
    slow.ask("first", reply=100)
    slow.clock.at(0.4, slow.ask, "second", 1, 300.0)
    slow.engine.slow(2.0)
    assert slow.play()["first"] == pytest.approx(0.4 + 0.6 + 2 * (100 - 20 - 10) * 0.01, rel=0.02)


def test_a_prompt_that_is_dropped_slows_nobody_any_more():
    bench = Bench(MODEL.model_copy(update={"mixed": 3.0}))
    bench.ask("first", reply=100)
    dropped = bench.ask("second", reply=10, prompt=10_000.0)
    bench.clock.at(0.3, bench.engine.drop, dropped)
    assert bench.play() == pytest.approx({"first": 0.3 + 0.9})


def test_reading_the_cache_makes_steps_longer_as_replies_grow():
    bench = Bench(MODEL.model_copy(update={"cell": 1e-4}))
    bench.ask("one", reply=100, prompt=200)
    read = sum(1e-4 * (200 + token) for token in range(100))
    assert bench.play() == pytest.approx({"one": 0.2 + 100 * 0.01 + read}, rel=0.005)


def test_a_step_takes_what_arithmetic_takes_where_that_is_more():
    bench = Bench(MODEL.model_copy(update={"compute": 0.008}))
    bench.ask("long", reply=100)
    bench.ask("short", reply=50)
    both = 50 * 2 * 0.008
    assert bench.play() == pytest.approx({"short": both, "long": both + 50 * 0.01})


def test_steps_are_bound_by_arithmetic_until_the_cache_has_grown():
    bench = Bench(MODEL.model_copy(update={"cell": 1e-4, "compute": 0.015}))
    bench.ask("one", reply=100)
    expected = sum(max(0.015, 0.01 + 1e-4 * token) for token in range(100))
    assert bench.play() == pytest.approx({"one": expected}, rel=0.005)


@pytest.mark.parametrize("stretch", [(0.01, 0.0, 0.0), (0.01, 0.001, 0.0), (0.01, 0.001, 0.05), (0.01, 0.0, 0.05)])
def test_time_and_steps_agree(stretch: tuple[float, float, float]):
    for steps in (0.5, 10.0, 39.0, 41.0, 1000.0):
        assert steps_of(stretch, seconds_of(stretch, steps)) == pytest.approx(steps)


def test_the_youngest_makes_room_when_the_cache_is_full_and_computes_again_what_it_had():
    bench = Bench(MODEL.model_copy(update={"kv_tokens": 150.0, "cache": "grown"}))
    bench.ask("old", reply=100)
    young = bench.ask("young", reply=100)
    later = bench.turn("later", reply=1, prompt=149)
    bench.clock.at(0.2, bench.engine.ask, later)
    full = 75 * 0.011
    bench.clock.at(full + 0.01, lambda: None)
    while bench.clock.now < full + 0.01:
        bench.clock.step()
    assert (young.phase, bench.engine.running, bench.engine.requests()[1:]) == ("queued", 1, [young, later])
    old = full + 25 * 0.01
    again = old + 0.075 + 25 * 0.01
    assert bench.play() == pytest.approx({"old": old, "young": again, "later": again + 0.149 + 0.01}, abs=0.02)
    assert bench.engine.made() == pytest.approx(201, abs=1)


def test_a_cache_that_grows_lets_more_begin_than_one_that_is_reserved():
    ended = {}
    for cache in ("reserved", "grown"):
        bench = Bench(MODEL.model_copy(update={"kv_tokens": 215.0, "cache": cache}))
        for name in ("one", "two", "three"):
            bench.ask(name, reply=100 if name == "one" else 60, prompt=10)
        ended[cache] = max(bench.play().values())
        assert bench.engine.running == bench.engine.waiting == 0
    assert ended["grown"] < ended["reserved"]
