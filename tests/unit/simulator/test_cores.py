"""The cores of a host, shared evenly by all who want one: worked out by hand."""

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.simulator import Machine
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.cores import Cores
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.devices.trace import DeviceTenure, Trace
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.runs import alone
from flexmarl.simulator.scenarios.scenario import Delays, EngineModel, Host, TrainerModel, scenario


class Hosted:
    def __init__(self, cores: int, playing: float = 0.0, training: float = 0.0, both: float = 0.0) -> None:
        self.clock, self.plays, self.trains = Clock(), False, True
        host = Host(cores=cores, playing=playing, training=training, both=both)
        self.cores = Cores(self.clock, host, lambda: (self.plays, self.trains))
        self.done: dict[str, float] = {}

    def note(self, name: str) -> None:
        self.done[name] = round(self.clock.now, 9)

    def run(self) -> dict[str, float]:
        while self.clock.step():
            pass
        return self.done


def test_work_that_finds_a_core_takes_its_time() -> None:
    host = Hosted(2)
    host.cores.work(1.0, host.note, "a")
    host.cores.work(3.0, host.note, "b")
    assert host.run() == {"a": 1.0, "b": 3.0}


def test_who_works_beside_each_other_has_an_even_part() -> None:
    """On one core: until 1 the first alone, then both by halves until the second is done, then the first again."""
    host = Hosted(1)
    host.cores.work(2.0, host.note, "first")
    host.clock.at(1.0, host.cores.work, 0.5, host.note, "second")
    assert host.run() == {"second": 2.0, "first": 2.5}


def test_others_take_their_part_and_are_as_many_as_go_with_what_goes_on() -> None:
    host = Hosted(2, playing=3.0, training=1.5, both=4.0)
    host.cores.work(2.0, host.note, "trained")
    host.clock.at(2.5, setattr, host, "plays", True)
    host.clock.at(2.5, host.cores.work, 1.0, host.note, "both")
    host.clock.at(5.0, setattr, host, "trains", False)
    host.clock.at(5.0, host.cores.work, 1.0, host.note, "played")
    assert host.run() == {"trained": 2.5, "both": 5.0, "played": 7.0}


def test_while_both_sides_go_on_others_are_no_fewer_than_beside_one() -> None:
    host = Hosted(2, playing=3.0, training=1.5)
    host.plays = True
    host.cores.work(1.0, host.note, "a")
    assert host.run() == {"a": 2.0}


def test_others_slow_down_nothing_where_there_are_cores_for_all() -> None:
    host = Hosted(8, playing=3.0)
    host.plays, host.trains = True, False
    host.cores.work(2.0, host.note, "a")
    assert host.run() == {"a": 2.0}


def test_a_way_is_slowed_beside_work_and_slows_down_none() -> None:
    host = Hosted(1, training=1.0)
    host.cores.after(3.0, host.note, "way")
    host.clock.at(1.0, host.cores.work, 1.0, host.note, "work")
    assert host.run() == {"work": 3.0, "way": 4.0}


def test_what_is_asked_for_later_and_due_earlier_comes_first() -> None:
    host = Hosted(1)
    host.cores.begin()
    host.cores.begin()
    host.cores.after(4.0, host.note, "late")
    host.clock.at(2.0, host.cores.after, 1.0, host.note, "soon")
    host.clock.at(3.0, host.cores.end)
    assert host.run() == {"soon": pytest.approx(3.5), "late": pytest.approx(5.5)}


def test_work_is_told_by_its_own_clock_and_time_by_the_real_one() -> None:
    host, seen = Hosted(1), []
    host.cores.work(1.0, lambda: seen.append((host.cores.now, host.cores.real)))
    host.cores.work(1.0, lambda: seen.append((host.cores.now, host.cores.real)))
    host.run()
    assert seen == [(1.0, 2.0), (1.0, 2.0)]


def test_what_an_engine_did_is_told_in_real_time() -> None:
    """Ten tokens of 0.1 s, at half the pace from the middle on."""
    host, trace = Hosted(1, training=1.0), Trace()
    trace.held[1] = DeviceTenure(1, "engine", 0.0)
    engine = SimulatedEngine(host.cores, trace, EngineModel(token=0.1, prefill=1e9), 1)
    engine.serve("a", 1, ())
    host.clock.at(4.0, engine.ask, SimulatedTurn("a", 1, "", 0.0, 10, lambda _: host.note("answered")))
    assert host.run() == {"answered": 6.0}
    assert [(one.began, one.ended) for one in trace.until(10.0)] == [pytest.approx((4.0, 6.0))]


def test_all_that_the_platform_takes_is_slowed_where_cores_are_wanting() -> None:
    """Engines and trainers take next to nothing; somebody works throughout at half a core: all takes twice as long."""
    delays = Delays(
        report=0.1, decide=0.01, hop=0.2, pick_up=0.3, start=2.0, turn=0.02, carry=0.05, fetch=0.1, commit=0.2,
        settle=0.4,
    )  # fmt: skip
    nothing = {"engine": EngineModel(token=1e-9, prefill=1e12, load=0.5), "trainer": TrainerModel(**NOTHING, step=0.3)}
    batch = {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2}
    spec = resolve({"batch": batch}, preset="flexmarl", template="hot_cold")
    plain = scenario({"spec": spec.document, "workload": {"environment": 0.0}, "steps": 3, "seed": 1})

    def stepped(host: Host) -> list[float]:
        own = plain.model_copy(update={"machine": Machine(delays=delays, host=host, **nothing)})
        cluster = alone(own)
        cluster.host.begin()
        while len(cluster.log.stepped) < 3 and cluster.clock.step():
            pass
        return cluster.log.stepped

    once, slow = stepped(Host()), stepped(Host(cores=4, playing=7.0, training=7.0))
    assert len(once) == 3
    assert slow == pytest.approx([2.0 * moment for moment in once], rel=1e-3)


NOTHING = dict.fromkeys(("micro_batch", "token", "row", "swap", "create"), 0.0)
