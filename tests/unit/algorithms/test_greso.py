"""GRESO's rule in worked examples: streaks, probabilities, bases that move; switched off, nothing is passed over."""

from collections import Counter

import msgspec
import numpy as np
import pytest

from flexmarl.algorithms import greso
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.algorithms.task_sampler import TASK_SAMPLERS, PlayedTask, Wanted, all_alike
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus

TASKS = 50
SOLVED, MISSED, MIXED = (1.0,) * 8, (0.0,) * 8, (1.0, 0.0) * 4


def sampler(**options):
    return TASK_SAMPLERS.make(TASK_SAMPLER.options("greso", **options))


def choose(belief, draw: int, count: int, tasks: int = TASKS, step: int = 0, made=None, **changes) -> list[int]:
    wanted = {"run_seed": 5, "members": 8, "excluded": frozenset()} | changes
    return (made or sampler()).choose(belief, Wanted(draw=draw, step=step, tasks=tasks, count=count, **wanted))


def played(*groups: tuple[float, ...], task: int = 7, step: int = 0, alike: bool | None = None) -> TaskBelief:
    """Return the belief after one task's groups, one in each step."""
    belief = TaskBelief()
    for number, shares in enumerate(groups):
        same = len(set(shares)) == 1 if alike is None else alike
        sampler().observe(belief, PlayedTask(TASKS, task, step + number, shares, same))
    return belief


@pytest.mark.parametrize(
    ("groups", "solved", "missed"),
    [
        ((), 0, 0),
        ((SOLVED,), 1, 0),
        ((SOLVED, SOLVED, SOLVED), 3, 0),
        ((MISSED, MISSED), 0, 2),
        ((SOLVED, SOLVED, MIXED), 0, 0),
        ((SOLVED, SOLVED, MISSED), 0, 1),
        ((MISSED, SOLVED), 1, 0),
        (((0.6,) * 8,), 1, 0),
        (((0.5,) * 8,), 0, 1),
        (((0.1,) * 8, (0.4,) * 8), 0, 2),
        ((SOLVED, (1.0,)), 1, 0),
    ],
    ids=[
        "never played", "solved", "solved thrice", "missed twice", "a group that differs ends a streak",
        "another kind begins anew", "and so the other way", "partial, above half", "partial, half",
        "partial, different", "one member says nothing",
    ],
)  # fmt: skip
def test_how_long_a_streak_is(groups: tuple[tuple[float, ...], ...], solved: int, missed: int):
    assert played(*groups).of(7)[:2] == (solved, missed)


def test_equal_shares_of_unequal_scores_are_a_variance():
    """Below 0 a share is 0: scores that differ there differ all the same."""
    assert played((0.0,) * 8, alike=False).of(7)[:2] == (0, 0)


def test_members_are_alike_where_the_team_and_every_role_earned_the_same():
    def outcome(team: float, **scores: float) -> EpisodeOutcome:
        return EpisodeOutcome(member=0, attempt=1, status=EpisodeStatus.FINISHED, team_score=team, scores=scores)

    assert all_alike([outcome(0.4, a=1.0, b=0.0), outcome(0.4, b=0.0, a=1.0)])
    assert not all_alike([outcome(0.4), outcome(0.5)])
    assert not all_alike([outcome(-0.4), outcome(-0.5)])
    assert not all_alike([outcome(0.5, a=1.0, b=0.0), outcome(0.5, a=0.0, b=1.0)])
    assert not all_alike([outcome(0.4)])
    assert not all_alike([])


def test_the_probability_to_be_played():
    solved, missed = np.array([0.0, 1, 2, 3, 4, 0, 0, 0]), np.array([0.0, 0, 0, 0, 0, 1, 2, 9])
    chances = greso.chances(solved, missed, (0.5, 0.5), (0.1, 0.4))
    assert chances == pytest.approx([1, 0.5, 0.25, 0.125, 0.1, 0.5, 0.4, 0.4])
    assert greso.chances(solved, missed, (0.5, 0.7), (0.0, 0.0)) == pytest.approx(
        [1, 0.5, 0.25, 0.125, 0.0625, 0.7, 0.49, 0.7**9]
    )


@pytest.mark.parametrize(
    ("base", "share", "after"),
    [(0.5, 0.2, 0.49), (0.5, 0.083, 0.49), (0.5, 0.05, 0.51), (0.015, 1.0, 0.01), (0.985, 0.0, 0.99)],
)
def test_a_base_moves_towards_the_target(base: float, share: float, after: float):
    assert greso.moved(base, share, 0.083, 0.01) == pytest.approx(after)


def test_a_base_that_does_not_move_may_be_anything():
    assert greso.moved(1.0, 0.0, 0.083, 0.0) == 1.0


def test_bases_move_once_in_a_step_and_after_the_first_pass():
    belief, made = TaskBelief(), sampler()
    bases = []
    for step in range(5):
        found = choose(belief, step, 20, step=step)
        bases.append((belief.figures["easy"], belief.figures["hard"]))
        for place, task in enumerate(found):
            if place == 10:  # what is drawn again in mid-step moves nothing, and ends no count
                choose(belief, 100 + step, 1, step=step)
            shares = SOLVED if place < 2 else MISSED if place < 5 else MIXED
            made.observe(belief, PlayedTask(TASKS, task, step, shares, place < 5))
    # 42 tasks had their turn before step 2 and over 50 before step 3. A tenth is above 0.083, 0.15 is below 0.167.
    assert bases[:3] == [(0.5, 0.5)] * 3
    assert bases[3] == pytest.approx((0.49, 0.51))
    assert bases[4] == pytest.approx((0.48, 0.52))


def test_a_step_without_groups_moves_nothing():
    belief = TaskBelief()
    for step in range(6):
        choose(belief, step, 25, step=step)
    assert (belief.figures["easy"], belief.figures["hard"]) == (0.5, 0.5)


def test_a_task_without_a_streak_is_played_whenever_it_comes():
    belief = played(MIXED)
    turns = [choose(belief, draw, 10) for draw in range(15)]
    assert turns == [[(10 * draw + place) % TASKS for place in range(10)] for draw in range(15)]


def test_how_often_a_task_with_a_streak_is_played():
    made = sampler(move_by=0.0)
    belief = TaskBelief()
    for task, groups in ((0, (SOLVED,) * 2), (1, (SOLVED,) * 9), (2, (MISSED,) * 9)):
        for step, shares in enumerate(groups):
            made.observe(belief, PlayedTask(4, task, step, shares, True))
    found = Counter(choose(belief, draw, 1, tasks=4, made=made)[0] for draw in range(3000))
    often = [found[task] / found[3] for task in range(3)]
    assert often == pytest.approx([0.25, 0.1, 0.4], abs=0.05)


@pytest.mark.parametrize(
    "options", [{"least_easy": 1.0, "least_hard": 1.0}, {"easy": 1.0, "hard": 1.0, "move_by": 0.0}]
)
def test_with_exploration_one_every_draw_is_the_next_task(options: dict):
    made, belief = sampler(**options), TaskBelief()
    for step in range(20):
        found = choose(belief, step, 15, step=step, made=made)
        assert found == [(15 * step + place) % TASKS for place in range(15)]
        for task in found:
            made.observe(belief, PlayedTask(TASKS, task, step, SOLVED if task % 2 else MISSED, True))


def test_after_256_refusals_the_next_task_is_played():
    """Where all are passed over for ever, as without floors after long streaks, a step is filled all the same."""
    made = sampler(least_easy=0.0, least_hard=0.0)
    belief = TaskBelief()
    belief.put(1000, 0, 0.0, 0.0, 0)
    belief.missed[:] = np.full(1000, 10_000, "<f4").tobytes()
    assert choose(belief, 0, 3, tasks=1000, made=made) == [256, 513, 770]
    assert belief.figures["position"] == 771


def test_chosen_tasks_differ_and_none_is_excluded():
    belief = played(*[SOLVED] * 5)
    excluded = frozenset(range(0, TASKS, 2))
    for draw in range(20):
        found = choose(belief, draw, 20, excluded=excluded)
        assert len(set(found)) == 20
        assert not excluded & set(found)
    assert sorted(choose(TaskBelief(), 1, 50)) == list(range(50))
    with pytest.raises(ValueError, match="26 tasks are wanted of 50, of which 25 are excluded"):
        choose(belief, 0, 26, excluded=excluded)


def test_a_belief_goes_to_a_snapshot_and_back():
    belief = TaskBelief()
    for step in range(8):
        for task in choose(belief, step, 15, step=step):
            sampler().observe(belief, PlayedTask(TASKS, task, step, SOLVED if task % 3 else MIXED, bool(task % 3)))
    back = msgspec.json.decode(msgspec.json.encode(belief), type=TaskBelief)
    assert back == belief
    assert belief.figures["easy"] != 0.5
    for step in range(8, 12):
        assert choose(back, step, 15, step=step) == choose(belief, step, 15, step=step)
    assert back == belief
    other = msgspec.json.decode(msgspec.json.encode(belief), type=TaskBelief)
    assert choose(other, 12, 40, step=12, run_seed=6) != choose(belief, 12, 40, step=12)


def test_what_is_believed_in_words():
    made, belief = sampler(), played(SOLVED, SOLVED, SOLVED)
    assert made.of_task(belief, 8) == "not played yet"
    assert made.of_task(belief, 7) == "solved without variance, streak of 3: passed over with probability 0.88"
    assert made.of_task(played(MISSED), 7) == "missed without variance, streak of 1: passed over with probability 0.50"
    assert made.of_task(played(MIXED), 7) == "members differed when it was last played, in step 1: never passed over"
    assert made.of_set(belief, TASKS) == (
        "of 50 tasks 1 were last solved without variance and 0 missed; after z such groups in a row one is played with "
        "probability 0.50^z, at least 0.10, or 0.50^z, at least 0.40"
    )
