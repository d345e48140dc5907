"""Choosing devices: as good as simulating every set, limits kept, reasons that hold, and mixed kinds where they pay."""

import numpy as np
import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.simulator.choosing.choosing import search
from flexmarl.simulator.choosing.explaining import told
from flexmarl.simulator.choosing.objectives import DeviceObjective, KnownSpeeds, PoolStock
from flexmarl.simulator.choosing.setups import DeviceQuestion
from flexmarl.simulator.prediction.profile import Profile, ProfileFigure, complete
from tests.support.clusters import cluster, gap, played
from tests.support.forms import form

BATCH = {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4}
OWN = resolve(
    {"batch": BATCH, "budget": {"train_steps": 20, "target": None}, "evaluation": {"every_steps": 20, "tasks": 4}},
    template="reference_game",
).spec


def profile(spec=OWN, engine=20.0, trainer=20.0) -> Profile:
    """Return exact figures: so many times as slow as small models are by default."""
    times = {"engine": engine, "trainer": trainer}
    return Profile(
        figures={
            name: ProfileFigure(low=value, likely=value, high=value, source="runs")
            for name, figure in complete(spec, {}).items()
            for value in [figure.likely * times.get(name.split(".")[0], 1.0)]
        }
    )


SLOW = PoolStock(name="slow", kind="slow", hosts=(4, 2), devices=6, price=1.0)
FAST = PoolStock(name="fast", kind="fast", hosts=(2,), devices=2, price=4.0)
SPEED = {"slow": (20.0, 80.0), "fast": (18.0, 8.0)}


def question(spec=OWN, stock=(SLOW, FAST), sizes=(1,), **wish) -> DeviceQuestion:
    known = tuple(
        KnownSpeeds(
            engine=one, each=each, trainer=other,
            profile=profile(spec, SPEED[one][0] * 0.7 ** (each.bit_length() - 1), SPEED[other][1]),
            derived_from=1 if each > 1 else None,
        )
        for one in SPEED for other in SPEED for each in sizes
    )  # fmt: skip
    return DeviceQuestion(spec, DeviceObjective(**{"objective": "fastest", **wish}), tuple(stock), known)


def choice(**wish):
    spec = wish.pop("spec", OWN)
    return told(search(question(spec, wish.pop("stock", (SLOW, FAST)), wish.pop("sizes", (1,)), **wish), played))


@pytest.mark.parametrize("seed", range(form(short=3, full=50)))
def test_the_choice_is_within_five_percent_of_simulating_every_set_of_devices(seed) -> None:
    assert gap(cluster(seed)) <= 0.05


def test_mixed_kinds_are_faster_than_either_alone_at_the_same_price() -> None:
    price = 10.0
    mixed = choice(budget_per_hour=price).best
    alone = [choice(budget_per_hour=price, stock=[pool]).best for pool in (SLOW, FAST)]
    assert (mixed.rollout_pool, mixed.training_pool) == ("slow", "fast")
    assert mixed.step_s.likely < 0.9 * min(one.step_s.likely for one in alone)
    assert mixed.cost.per_hour <= price


def test_every_limit_is_kept_and_one_that_nothing_keeps_is_told_with_the_best_there_is() -> None:
    free = choice().best
    for wish, value in (
        ({"budget_per_hour": 5.0}, lambda one: one.cost.per_hour),
        ({"budget_per_step": free.cost.per_step.likely * 0.8}, lambda one: one.cost.per_step.likely),
        ({"budget": free.cost.whole.likely * 0.8}, lambda one: one.cost.whole.likely),
        ({"objective": "cheapest", "deadline_s": free.hours.likely * 3600 * 1.2}, lambda one: one.hours.likely * 3600),
        ({"objective": "cheapest", "steps_per_hour": 2000 / free.step_s.likely}, lambda one: -3600 / one.step_s.likely),
    ):
        [(name, limit)] = [(n, v) for n, v in wish.items() if n != "objective"]
        found = choice(**wish).best
        assert found is not None, wish
        assert value(found) <= (-limit if name == "steps_per_hour" else limit) * 1.000001, wish
    none = choice(deadline_s=1.0)
    assert none.best is None
    assert none.out_of_reach.limit == "deadline_s"
    assert choice(deadline_s=none.out_of_reach.best * 1.001).best is not None
    both = choice(deadline_s=free.hours.likely * 3600 * 1.05, budget_per_hour=2.0)
    assert both.out_of_reach is not None
    assert both.out_of_reach.limit in ("budget_per_hour", "deadline_s")


def test_what_one_more_device_changes_is_what_its_own_plan_says() -> None:
    found = search(question(budget_per_hour=9.0), played)
    best = told(found).best
    assert len(best.why) == 3
    assert any("budget_per_hour would be exceeded" in line for line in best.why)
    assert best.bottleneck in ("engines", "trainers", "path")
    alone = choice(stock=[FAST]).best
    assert (alone.rollout_devices, alone.training_devices) == (1, 1)
    assert sum("has none left for this run" in line for line in alone.why) == 2


def test_a_lag_bound_is_raised_only_where_it_is_allowed_and_pays() -> None:
    assert choice().best.lag_bound == 0
    loose = choice(max_lag=4).best
    assert 0 < loose.lag_bound <= 4
    assert loose.step_s.likely < choice().best.step_s.likely
    changes = {one.pointer: one.value for one in loose.changes}
    assert changes["/mechanisms/lag_policy/bound"] == loose.lag_bound


def test_engines_of_several_devices_lie_on_one_host_and_only_where_the_engine_allows_it() -> None:
    chat = resolve({"batch": BATCH, "resources": {"engine": "vllm"}, "budget": {"train_steps": 20, "target": None}},
                   template="chat_sums").spec  # fmt: skip
    wide = search(question(chat, stock=(SLOW, FAST), sizes=(1, 2, 3, 4)), played)
    sizes = {(one.rollout.name, one.each) for one in wide.table.setups}
    assert sizes == {("slow", 1), ("slow", 3), ("fast", 1)}, "its 9 heads are split in three; a host of fast has two"
    for number, one in enumerate(wide.table.setups):
        if one.each == 3:
            assert set(wide.table.engines[wide.table.setup == number]) == {1.0}, "the second host of slow has two"
    assert {one.each for one in search(question(), played).table.setups} == {1}


def test_trainers_are_never_on_hosts_that_may_be_taken_away_and_fleets_there_may_shrink() -> None:
    spot = SLOW.model_copy(update={"preemptible": True})
    best = choice(stock=[spot, FAST]).best
    assert (best.rollout_pool, best.training_pool) == ("slow", "fast")
    changes = {one.pointer: one.value for one in best.changes}
    assert changes["/resources/rollout_devices"] == {"min": 1, "max": best.rollout_devices}
    assert choice(stock=[spot, FAST], preemptible="never").best.rollout_pool == "fast"
    assert choice(stock=[spot]).best is None


def test_a_pool_whose_devices_are_too_small_is_not_chosen() -> None:
    small = FAST.model_copy(update={"memory_bytes": 1_000_000})
    assert choice(stock=[SLOW, small]).best.training_pool == "slow"


def test_the_same_question_has_the_same_answer_and_time_that_is_short_is_told() -> None:
    assert choice() == choice()
    short = told(search(question(), played, spare=lambda: False), spare=lambda: False)
    assert short.stopped
    assert short.simulated == 1
    assert short.best is not None


def test_trainers_that_share_devices_are_chosen_with_them() -> None:
    shared = resolve(
        {"batch": BATCH, "mechanisms": {"allocation": "colocated", "trainer_protocol": "batch"},
         "resources": {"rollout_devices": 1, "training_devices": 1}, "budget": {"train_steps": 20, "target": None}},
        template="reference_game",
    ).spec  # fmt: skip
    best = choice(spec=shared).best
    assert best.shared
    assert best.rollout_pool == best.training_pool
    assert best.training_devices <= best.rollout_devices
    assert best.cost.per_hour == pytest.approx(best.rollout_devices * {"slow": 1.0, "fast": 4.0}[best.rollout_pool])


def test_the_table_holds_every_legal_set_once() -> None:
    found = search(question(), played).table
    rows = {
        (s.rollout.name, s.training.name, int(e), int(t))
        for s, e, t in (
            (found.setups[n], e, t) for n, e, t in zip(found.setup, found.engines, found.trainers, strict=True)
        )
    }
    assert len(rows) == len(found.closed_s)
    assert all(
        one != other or engines + trainers <= {"slow": 6, "fast": 2}[one] for one, other, engines, trainers in rows
    )
    assert not np.isnan(found.per_hour).any()
