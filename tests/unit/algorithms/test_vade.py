"""VADE's rule in the figures of its paper's worked examples, and that its quick draw is the slow one."""

import time

import msgspec
import numpy as np
import pytest

from flexmarl.algorithms import rate_windows, vade
from flexmarl.algorithms.task_belief import Evidence, TaskBelief
from flexmarl.algorithms.task_sampler import TASK_SAMPLERS, PlayedTask, Wanted
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER

TASKS = 50
SAMPLER = TASK_SAMPLERS.make(TASK_SAMPLER.options("vade"))


def belief_of(solved: float, missed: float, task: int = 7, tasks: int = TASKS) -> TaskBelief:
    belief = TaskBelief()
    belief.put(tasks, task, solved, missed, 0)
    return belief


def evidence(belief: TaskBelief, task: int = 7, step: int = 0) -> tuple[float, float]:
    [solved], [missed] = belief.evidence(np.array([task]), step, 0.999)
    return float(solved), float(missed)


def choose(belief: TaskBelief, draw: int, count: int, tasks: int = TASKS, step: int = 0, **changes) -> list[int]:
    wanted = {"run_seed": 5, "members": 8, "excluded": frozenset()} | changes
    return SAMPLER.choose(belief, Wanted(draw=draw, step=step, tasks=tasks, count=count, **wanted))


@pytest.mark.parametrize(("before", "solved", "after"), [((2.7, 5.3), 4, (4.54, 5.06)), ((0.1, 8.4), 1, (1.02, 8.68))])
def test_a_task_that_was_played(before: tuple[float, float], solved: int, after: tuple[float, float]):
    belief = belief_of(*before)
    SAMPLER.observe(belief, PlayedTask(TASKS, 7, 0, (1.0,) * solved + (0.0,) * (8 - solved)))
    assert evidence(belief, step=1) == pytest.approx(after, abs=1e-6)


def test_a_task_that_was_not_played():
    belief = belief_of(9.0, 0.2)
    assert evidence(belief, step=1) == pytest.approx((8.991, 0.1998), abs=1e-6)
    assert evidence(belief, step=693)[0] == pytest.approx(4.5, rel=1e-3)
    assert evidence(belief, task=8, step=693) == (0.0, 0.0)


def test_idle_steps_fade_before_a_group_counts():
    belief = belief_of(9.0, 0.2)
    SAMPLER.observe(belief, PlayedTask(TASKS, 7, 3, (1.0, 0.0)))
    assert evidence(belief, step=4) == pytest.approx((0.2 * 9.0 * 0.999**3 + 1, 0.2 * 0.2 * 0.999**3 + 1), abs=1e-6)


def test_partial_rewards_count_in_part_and_members_that_failed_not_at_all():
    belief = TaskBelief()
    SAMPLER.observe(belief, PlayedTask(TASKS, 7, 0, (0.25, 0.5, 1.0)))
    assert evidence(belief, step=1) == pytest.approx((1.75, 1.25))


def test_what_a_rate_promises():
    assert vade.promise(np.array([1 / 3, 0.13, 0.32, 0.9])) == pytest.approx([4 / 27, 0.098, 0.148, 0.009], abs=5e-4)
    assert vade.promise(np.random.default_rng(0).beta(3, 5, 100_000)).mean() == pytest.approx(0.125, abs=5e-4)
    for a, b in ((3.0, 5.0), (1.0, 1.0), (9.9, 1.2)):
        rates = (np.arange(20_000) + 0.5) / 20_000
        mean = (vade.promise(rates) * rate_windows.density(rates, np.array([a - 1]), np.array([b - 1]))).mean()
        assert mean == pytest.approx(a * b * (b + 1) / ((a + b) * (a + b + 1) * (a + b + 2)), rel=1e-6)
    assert vade.most_evidence(8, 0.2) == 10.0


def test_a_task_that_is_always_played_comes_to_the_most_evidence():
    belief = TaskBelief()
    for step in range(60):
        SAMPLER.observe(belief, PlayedTask(TASKS, 7, step, (1.0,) * 8))
    assert evidence(belief, step=60) == pytest.approx((10.0, 0.0), abs=1e-5)
    assert sum(evidence(belief, step=60)) <= vade.most_evidence(8, 0.2) + 1e-5


def test_a_mastered_task_loses_its_share_and_one_that_is_solved_by_a_third_gains():
    belief, rng, played = TaskBelief(), np.random.default_rng(3), np.zeros(TASKS)
    for step in range(400):
        for task in choose(belief, step, 10, step=step):
            rate = {7: 1.0, 8: 1 / 3}.get(task, 0.9)
            played[task] += step >= 100
            SAMPLER.observe(belief, PlayedTask(TASKS, task, step, tuple((rng.random(8) < rate).astype(float))))
    usual = 300 * 10 / TASKS
    assert played[7] < 0.8 * usual
    assert played[8] > 2.0 * usual


@pytest.mark.parametrize("tasks", [TASKS, 5000])
def test_who_knows_nothing_draws_uniformly(tasks: int):
    counts = np.bincount(
        [task * TASKS // tasks for draw in range(600) for task in choose(TaskBelief(), draw, 5, tasks)], minlength=TASKS
    )
    expected = 3000 / TASKS
    assert ((counts - expected) ** 2 / expected).sum() < 94.0  # the 99.99 % quantile of chi-squared with 49 degrees


def of_a_large_set(tasks: int) -> TaskBelief:
    """Three kinds of task in turn: never played, known to be hard, solved by a third."""
    belief = TaskBelief()
    for task in range(tasks):
        if task % 3:
            belief.put(tasks, task, *((0.5, 7.5) if task % 3 == 1 else (2.7, 5.3)), as_of=0)
    return belief


def test_the_window_gives_what_sampling_every_rate_does(monkeypatch: pytest.MonkeyPatch):
    tasks, draws = 3000, 300
    belief = of_a_large_set(tasks)

    def shares() -> np.ndarray:
        chosen = [[task % 3 for task in choose(belief, draw, 8, tasks, step=200)] for draw in range(draws)]
        return np.array([[row.count(kind) for kind in range(3)] for row in chosen])

    near = shares()
    looked_at = []
    monkeypatch.setattr(vade, "_near", lambda *args: looked_at.append(args) or [])
    every = shares()
    assert len(looked_at) == draws
    error = np.sqrt((near.var(0) + every.var(0)) / draws)
    assert (np.abs(near.mean(0) - every.mean(0)) < 3.5 * error).all()
    kinds = ((0.0, 0.0), (0.41, 6.14), (2.21, 4.34))  # after 200 idle steps
    expected = [float(rate_windows.density(1 / 3, np.array([a]), np.array([b]))[0]) for a, b in kinds]
    assert near.mean(0) == pytest.approx(8 * np.array(expected) / sum(expected), rel=0.1)
    assert (near != every).any()


def test_the_window_is_enough_for_a_large_set(monkeypatch: pytest.MonkeyPatch):
    def never(*args: object) -> None:
        raise AssertionError("every rate was sampled")

    belief = of_a_large_set(6000)
    found = [choose(belief, draw, 32, 6000, step=10) for draw in range(50)]
    monkeypatch.setattr(vade, "promise", lambda values: never() if len(values) == 6000 else values * (1 - values) ** 2)
    assert [choose(belief, draw, 32, 6000, step=10) for draw in range(50)] == found


KINDS = np.array(((10.0, 0.0), (0.0, 9.0), (8.0, 2.0), (9.5, 0.1), (0.0, 0.0), (3.0, 6.0), (0.3, 0.2)))
"""Evidence for and against: solved, missed, mostly solved, nearly always, never played, near a third, hardly known."""
STEP, AGE = 400, 30
SHARES = np.array((0.9, 0.02, 0.04, 0.03, 0.0002, 0.0003, 0.0095))


def of_kinds(tasks: int, kinds: np.ndarray = KINDS, shares: np.ndarray = SHARES) -> tuple[TaskBelief, np.ndarray]:
    """Return a belief of a set whose tasks are of some kinds by chance, each of another age; kinds of tasks."""
    belief = TaskBelief()
    kind = np.random.default_rng(4).choice(len(kinds), tasks, p=shares)
    belief.solved, belief.missed = (bytearray(kinds[kind, side].astype("<f4").tobytes()) for side in range(2))
    belief.as_of = bytearray((STEP - AGE * kind).astype("<i4").tobytes())
    return belief, kind


@pytest.mark.parametrize("window", [(0.1, 0.68), (0.32, 0.35), (0.002, 0.955)])
def test_tasks_with_bounds_of_their_own_fall_into_a_window_as_often_as_their_rates_do(window: tuple[float, float]):
    tasks, known = 300_000, np.arange(0, 300_000, 40)
    belief, kind = of_kinds(tasks)
    evidence = Evidence(belief, STEP, 0.999)
    found, rates = rate_windows.of_each(np.random.default_rng(0), tasks, known, evidence, 10.5, window)
    assert len(set(found)) == len(found)
    assert not set(found) & set(known)
    edges = np.linspace(*window, 6)
    kind[known] = -1
    for number, of_kind in enumerate(KINDS * 0.999 ** (AGE * np.arange(len(KINDS)))[:, None]):
        counts = np.histogram(rates[kind[found] == number], edges)[0]
        points = edges[:-1, None] + np.diff(edges)[:, None] * (np.arange(2000) + 0.5) / 2000
        chances = rate_windows.density(points, *of_kind[:, None]).mean(1) * np.diff(edges)
        expected = chances * (kind == number).sum()
        assert (np.abs(counts - expected) < 4.5 * np.sqrt(expected * (1 - chances)) + 2.0).all()


@pytest.mark.parametrize("most", [0.3, 10.0, 3000.0])
def test_no_task_has_a_density_above_what_it_comes_into_question_with(most: float):
    rng = np.random.default_rng(2)
    total, share = most * rng.random(40_000), rng.choice([0.0, 1.0, 1 / 3, *rng.random(5)], 40_000)
    belief = TaskBelief()
    for name, values in (("solved", total * share), ("missed", total - total * share)):
        setattr(belief, name, bytearray(values.astype("<f4").tobytes()))
    belief.as_of = bytearray(np.full(40_000, STEP, "<i4").tobytes())
    evidence, nobody = Evidence(belief, STEP, 0.999), np.zeros(0, np.int64)
    for window in ((0.1, 0.68), (0.33, 0.34), (0.002, 0.955)):
        cells = rate_windows.bounds(window, most)
        numbers, chances = rate_windows._in_question(rng, 40_000, nobody, evidence, cells)
        rates, shares = rate_windows._proposed(rng, *evidence.of(numbers), window)
        assert (rate_windows.density(rates, *evidence.of(numbers)) <= chances * shares)[chances < 1.0].all()


def test_where_hardly_a_task_is_near_a_third_the_choice_is_that_of_sampling_every_rate(monkeypatch: pytest.MonkeyPatch):
    """Kinds of the tasks that are chosen, and of the one that is first, over many draws of both ways."""
    tasks, draws, counts, rest = 8_000, 300, {}, []
    belief, kind = of_kinds(tasks, shares=np.array((0.95, 0.0, 0.03, 0.0195, 0.0, 0.0005, 0.0)))
    monkeypatch.setattr(vade, "SAMPLED_FIRST", 64)
    monkeypatch.setattr(vade, "ABOVE_BAR", 1)
    monkeypatch.setattr(vade, "_below", lambda *args, own=vade._below: rest.append(args) or own(*args))
    for many in (4096, tasks):
        monkeypatch.setattr(vade, "MANY_TASKS", many)
        chosen = [kind[choose(belief, draw, 24, tasks, step=STEP)] for draw in range(draws)]
        counts[many] = np.array([[*np.bincount(row, minlength=7), *(np.arange(7) == row[0])] for row in chosen])
    assert draws // 20 < len(rest) < draws // 2  # draws with a bar that too few were above
    error = np.sqrt((counts[4096].var(0) + counts[tasks].var(0)) / draws)
    assert (np.abs(counts[4096].mean(0) - counts[tasks].mean(0)) <= 3.5 * error + 1e-9).all()


def test_what_is_known_to_be_below_a_bar_is_sampled_below_it():
    belief, _ = of_kinds(20_000, np.array(((3.0, 6.0), (3.0, 6.0))), np.array((1.0, 0.0)))
    evidence, rng = Evidence(belief, STEP, 0.999), np.random.default_rng(0)
    worth = vade._below(rng, np.arange(20_000), evidence, 0.12)
    every = vade.promise(rng.beta(4.0, 7.0, 400_000))
    assert worth.max() <= 0.12
    points = (0.1, 0.5, 0.9)
    assert np.quantile(worth, points) == pytest.approx(np.quantile(every[every <= 0.12], points), rel=0.03)


def test_where_hardly_a_task_is_near_a_third_a_draw_of_a_million_still_takes_little():
    belief, _ = of_kinds(1_000_000, np.array(((10.0, 0.0), (3.3, 6.7))), np.array((0.997, 0.003)))
    taken = []
    for draw in range(5):
        began = time.thread_time()
        assert len(set(choose(belief, draw, 64, 1_000_000, step=STEP))) == 64
        taken.append(time.thread_time() - began)
    assert min(taken) < 0.06  # 0.013 on a machine with nothing else to do, 0.1 and more where every rate is sampled


@pytest.mark.parametrize("most", [0.0, 0.3, 2.0, 10.0, 320.0])
def test_no_density_in_a_window_is_above_its_bound(most: float):
    for low in (0.2084, 0.3, 0.3332):
        high = vade.other_end(low)
        assert vade.promise(np.array([high])) == pytest.approx(vade.promise(np.array([low])))
        bound = vade._highest(low, high, most)
        for total in np.linspace(0.0, most, 25):
            solved = np.linspace(0.0, total, 300)
            for rate in np.linspace(low, high, 7):
                assert rate_windows.density(rate, solved, total - solved).max() < bound


@pytest.mark.parametrize("tasks", [TASKS, 5000])
def test_chosen_tasks_differ_and_none_is_excluded(tasks: int):
    excluded = set(range(0, tasks, 2))
    for draw in range(20):
        found = choose(TaskBelief(), draw, 20, tasks, excluded=excluded)
        assert len(set(found)) == 20
        assert not excluded & set(found)
        assert found == choose(TaskBelief(), draw, 20, tasks, excluded=excluded)
    assert choose(TaskBelief(), 1, 20, tasks) != choose(TaskBelief(), 2, 20, tasks)
    assert choose(TaskBelief(), 1, 20, tasks, run_seed=6) != choose(TaskBelief(), 1, 20, tasks)
    assert sorted(choose(TaskBelief(), 1, 50, 50)) == list(range(50))
    with pytest.raises(ValueError, match="are wanted"):
        choose(TaskBelief(), 0, 26, 50, excluded=set(range(25)))


@pytest.mark.parametrize("tasks", [TASKS, 3000])
def test_a_belief_goes_to_a_snapshot_and_back(tasks: int):
    belief = belief_of(2.7, 5.3, tasks=tasks)
    back = msgspec.json.decode(msgspec.json.encode(belief), type=TaskBelief)
    assert back == belief
    for one in (belief, back):
        SAMPLER.observe(one, PlayedTask(tasks, 9, 4, (1.0, 0.3)))
    assert back == belief
    assert choose(back, 3, 10, tasks, step=5) == choose(belief, 3, 10, tasks, step=5)


def test_what_is_believed_in_words():
    assert SAMPLER.of_task(TaskBelief(), 7) == "not played yet"
    belief = TaskBelief()
    SAMPLER.observe(belief, PlayedTask(TASKS, 7, 4, (1.0, 1.0, 0.5)))
    assert SAMPLER.of_task(belief, 7) == "evidence 2.5 that it is solved and 0.5 that it is not, after step 5"


def test_uniform_chooses_nothing_and_believes_nothing():
    uniform, belief = TASK_SAMPLERS.make(TASK_SAMPLER.options("uniform")), TaskBelief()
    uniform.observe(belief, PlayedTask(TASKS, 1, 0, (1.0,)))
    assert belief == TaskBelief()
    assert uniform.choose(belief, Wanted(0, 0, 0, TASKS, 3, 8, frozenset())) == []
