"""Tasks chosen by how earlier groups ended: a draw keeps its own, a group is told once, a restart goes on alike."""

import re
from collections import Counter

import msgspec
import numpy as np
import pytest

from flexmarl.algorithms.seeds import derive
from flexmarl.algorithms.task_belief import TaskBelief
from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.orchestrator.plan import make_plan
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started
from tests.unit.orchestrator.fake_parts import refusals

TASKS = 15
SEEDS = {derive(3, "task", task): task for task in range(TASKS)}
VADE = {"sampling__task_sampler": {"type": "vade", "tasks": TASKS}, "budget__train_steps": 6}
CHOOSERS = {
    "greso": {"type": "greso", "tasks": TASKS, "easy": 0.3, "hard": 0.3, "move_by": 0.1},
    "filter_solved": {"type": "filter_solved", "tasks": TASKS, "decay": 0.3, "threshold": 0.45},
    "near_success": {"type": "near_success", "tasks": TASKS, "target": 0.4},
}
LAGGING = {"mechanisms__lag_policy": {"bound": 2}}
DYNAMIC = {"sampling__group_filter": {"type": "dynamic_sampling", "draw_limit": 3}}


def tasks_of(cluster) -> dict[int, list[int]]:
    """Cohort -> tasks of its draws, in the order of draws."""
    found: dict[int, dict[int, int]] = {}
    for command in cluster.commands("play_groups"):
        if command.origin is Origin.TRAIN:
            for group in command.groups:
                found.setdefault(command.cohort, {})[group.draw] = SEEDS[group.task_seed]
    return {cohort: [task for _, task in sorted(own.items())] for cohort, own in found.items()}


def believed(cluster) -> list[tuple[float, float]]:
    step = cluster.core.state.numbers.cohort
    solved, missed = cluster.core.state.choice.belief.evidence(np.arange(TASKS), step, 0.999)
    return list(zip(solved.tolist(), missed.tolist(), strict=True))


def by_the_sheet(cluster) -> list[tuple[float, float]]:
    """What all facts of the run amount to, step by step as the paper has it: every task fades or is added to."""
    orders = [(c.cohort, g) for c in cluster.commands("play_groups") if c.origin is Origin.TRAIN for g in c.groups]
    where = {group.draw: (cohort, SEEDS[group.task_seed]) for cohort, group in orders}
    settled = {
        event.draw: event
        for event, _ in cluster.log
        if isinstance(event, GroupSettled) and event.origin is Origin.TRAIN
    }
    evidence = [(0.0, 0.0)] * TASKS
    for step in range(cluster.core.state.numbers.cohort):
        now = [(0.999 * solved, 0.999 * missed) for solved, missed in evidence]
        for draw, event in settled.items():
            cohort, task = where[draw]
            shares = [e.team_score for e in event.episodes if e.status is EpisodeStatus.FINISHED]
            if cohort == step and shares:
                solved, missed = evidence[task]
                now[task] = (0.2 * solved + sum(shares), 0.2 * missed + len(shares) - sum(shares))
        evidence = now
    return evidence


@pytest.mark.parametrize("more", [{}, DYNAMIC], ids=["plain", "dynamic"])
@pytest.mark.parametrize("seed", range(3))
def test_the_belief_is_what_all_groups_said(seed: int, more: dict):
    cluster = started(make_spec(**VADE, **more), seed=seed, faults=Faults(twice=0.3, episode_failure=0.3)).run()
    assert cluster.status is RunStatus.COMPLETED
    assert np.allclose(believed(cluster), by_the_sheet(cluster), rtol=0.0, atol=1e-5)
    assert sum(map(sum, believed(cluster))) > 0


@pytest.mark.parametrize("more", [{}, LAGGING, DYNAMIC], ids=["plain", "lagging", "dynamic"])
def test_a_step_plays_different_tasks(more: dict):
    cluster = started(make_spec(**VADE, **more), seed=1).run()
    found = tasks_of(cluster)
    assert len(found) == 6
    for tasks in found.values():
        distinct = min(len(tasks), TASKS)
        assert len(set(tasks[:distinct])) == distinct
    assert len({tuple(sorted(tasks)) for tasks in found.values()}) > 1


@pytest.mark.parametrize("more", [{}, LAGGING], ids=["plain", "lagging"])
def test_a_restart_between_any_two_facts_chooses_the_same(more: dict):
    one, other = (started(make_spec(**VADE, **more), seed=2, round_trip=again).run() for again in (False, True))
    assert tasks_of(one) == tasks_of(other)
    assert believed(one) == believed(other)
    assert one.core.state.choice.belief != TaskBelief()


@pytest.mark.parametrize("name", CHOOSERS)
@pytest.mark.parametrize("more", [{}, LAGGING, DYNAMIC], ids=["plain", "lagging", "dynamic"])
def test_other_samplers_choose_the_same_after_any_restart_and_play_different_tasks(name: str, more: dict):
    chosen = {"sampling__task_sampler": CHOOSERS[name], "budget__train_steps": 8}
    one, other = (started(make_spec(**chosen, **more), seed=2, round_trip=again).run() for again in (False, True))
    assert one.status is RunStatus.COMPLETED
    assert tasks_of(one) == tasks_of(other)
    # To the byte: a replay compares its snapshot with that of a driver that went on from one.
    assert msgspec.json.encode(one.core.state.choice) == msgspec.json.encode(other.core.state.choice)
    assert one.core.state.choice.belief.solved
    for tasks in tasks_of(one).values():
        distinct = min(len(tasks), TASKS)
        assert len(set(tasks[:distinct])) == distinct


def test_streaks_are_what_all_groups_said():
    chosen = {"sampling__task_sampler": CHOOSERS["greso"], "budget__train_steps": 12}
    cluster = started(make_spec(**chosen), seed=3, faults=Faults(twice=0.3, episode_failure=0.3)).run()
    orders = [g for c in cluster.commands("play_groups") if c.origin is Origin.TRAIN for g in c.groups]
    task_of, heard = {g.draw: SEEDS[g.task_seed] for g in orders}, set()
    streaks = dict.fromkeys(range(TASKS), (0, 0))
    for event in (e for e, _ in cluster.log if isinstance(e, GroupSettled) and e.origin is Origin.TRAIN):
        earned = [e.team_score for e in event.episodes if e.status is EpisodeStatus.FINISHED]
        if event.draw in heard or len(earned) < 2:
            continue
        heard.add(event.draw)
        solved, missed = streaks[task := task_of[event.draw]]
        same, high = len(set(earned)) == 1, earned[0] > 0.5
        streaks[task] = (solved + 1 if same and high else 0, missed + 1 if same and not high else 0)
    belief = cluster.core.state.choice.belief
    assert {task: belief.of(task)[:2] for task in streaks} == streaks
    assert len(set(streaks.values())) > 2


@pytest.mark.parametrize("name", CHOOSERS)
def test_what_a_sampler_believes_is_said_of_every_step(name: str):
    cluster = started(make_spec(sampling__task_sampler=CHOOSERS[name], budget__train_steps=6), seed=2).run()
    said = [r.reason for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.COHORT_SETTLED]
    assert len(said) == 6
    assert all(f"; of {TASKS} tasks " in reason for reason in said)
    plan, belief = cluster.core.plan, cluster.core.state.choice.belief
    assert said[-1].endswith(plan.tasks.sampler.of_set(belief, TASKS))


def test_of_a_group_that_is_refused_it_is_said_what_is_believed_of_its_task():
    """By then the group counts: one without variance leads to a streak."""
    cluster = started(make_spec(sampling__task_sampler=CHOOSERS["greso"], **DYNAMIC), seed=2).run()
    orders = [g for c in cluster.commands("play_groups") if c.origin is Origin.TRAIN for g in c.groups]
    task_of = {f"draw:{g.draw}": SEEDS[g.task_seed] for g in orders}
    refused = [r for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.GROUP_REFUSED]
    assert refused
    for ruling in refused:
        words = rf"; task {task_of[ruling.target]}: (solved|missed) without variance, streak of [1-9]"
        assert re.search(words, ruling.reason), ruling.reason


@pytest.mark.parametrize(
    "off",
    [
        {"type": "greso", "least_easy": 1.0, "least_hard": 1.0},
        {"type": "greso", "easy": 1.0, "hard": 1.0, "move_by": 0.0},
        {"type": "filter_solved", "threshold": 1.0},
        {"type": "near_success", "in_order": 1.0},
    ],
    ids=["greso, floors of 1", "greso, bases of 1", "filter_solved, threshold of 1", "near_success, all in order"],
)
@pytest.mark.parametrize("more", [{}, LAGGING, DYNAMIC], ids=["plain", "lagging", "dynamic"])
def test_switched_off_a_sampler_draws_what_uniform_draws(off: dict, more: dict):
    """The same seed in every draw: the set is that of the first draws of `uniform`."""

    def seeds(sampler: dict) -> dict[int, int]:
        spec = make_spec(sampling__task_sampler=sampler, budget__train_steps=6, **more)
        cluster = started(spec, seed=1).run()
        orders = [c for c in cluster.commands("play_groups") if c.origin is Origin.TRAIN]
        return {group.draw: group.task_seed for command in orders for group in command.groups}

    assert seeds(off | {"tasks": 500}) == seeds({"type": "uniform"})


def test_a_command_that_is_given_again_has_the_same_tasks():
    cluster = started(make_spec(**VADE), seed=4, faults=Faults(child_death=0.02, refused=0.2)).run()
    seeds: dict[int, set[int]] = {}
    for command in cluster.commands("play_groups"):
        for group in command.groups:
            seeds.setdefault(group.draw, set()).add(group.task_seed)
    assert all(len(own) == 1 for own in seeds.values())


def test_a_deferred_task_is_played_later():
    fate = {"mechanisms__redundancy": {"type": "extra_groups", "extra": 3, "surplus": "defer"}}
    cluster = started(make_spec(**VADE | {"budget__train_steps": 8}, **fate), seed=5).run()
    orders = [(c.cohort, g) for c in cluster.commands("play_groups") if c.origin is Origin.TRAIN for g in c.groups]
    assert {group.task_seed for _, group in orders} <= SEEDS.keys()
    longest = [cohort for cohort, size in Counter(cohort for cohort, _ in orders).items() if size == 6]
    assert longest, "no round of deferred tasks"
    assert len(cluster.core.state.choice.of_draw) <= 3 * 9


def test_draws_that_are_over_are_forgotten():
    cluster = started(make_spec(**VADE), seed=6).run()
    assert len(cluster.core.state.choice.of_draw) <= 6


def test_tasks_of_a_list_are_its_numbers():
    spec = resolve(
        {
            "environment": {"type": "reasoning_gym", "training": 40},
            "policies": {"solver": {"model": {"type": "folder", "path": "/models/tiny"}}},
            "agents": {"solver": {}},
            "sampling": {"task_sampler": "vade"},
        }
    ).spec
    plan = make_plan(spec)
    assert plan.tasks.chosen_from == 40
    assert [plan.training_seed(task) for task in (0, 7, 39)] == [0, 7, 39]
    assert plan.evaluation_seed(3) == 3


def test_uniform_draws_are_what_they_were():
    cluster = started(make_spec(), seed=1).run()
    assert cluster.core.state.choice.of_draw == {}
    orders = [g for c in cluster.commands("play_groups") if c.origin is Origin.TRAIN for g in c.groups]
    assert all(group.task_seed == derive(3, "task", group.draw) for group in orders)


@pytest.mark.parametrize(
    ("changes", "pointer", "code", "hint"),
    [
        (
            {"sampling__task_sampler": "vade"},
            "/sampling/task_sampler/tasks",
            "needs_tasks",
            "Set how many it may choose from, such as 512, or type: uniform.",
        ),
        (
            {"sampling__task_sampler": {"type": "vade", "tasks": 5}},
            "/sampling/task_sampler/tasks",
            "out_of_range",
            "Set 6 to 1000000.",
        ),
        (
            {**VADE, "batch__settle": "episode", "algorithm__advantage": {"type": "reinforce"}},
            "/batch/settle",
            "needs_group",
            "Set group, or task_sampler: uniform in /sampling.",
        ),
        (
            {**VADE, "sampling__branch_controller": "at_grpo_tree", "algorithm__group_key": "agent_turn"},
            "/sampling/task_sampler/type",
            "not_with_branches",
            "Set uniform, or branch_controller: none in /sampling.",
        ),
    ],
)
@pytest.mark.parametrize("name", ["vade", *CHOOSERS])
def test_what_a_choice_of_tasks_cannot_work_with_is_refused(
    name: str, changes: dict, pointer: str, code: str, hint: str
):
    given = changes["sampling__task_sampler"]
    chosen = name if isinstance(given, str) else given | {"type": name}
    found = refusals(**changes | {"sampling__task_sampler": chosen})
    assert (pointer, code, hint) in {(p.pointer, p.code, p.hint) for p in found}


def test_groups_of_one_are_refused_with_greso():
    alone = {"batch__episodes_per_task": 1, "algorithm__advantage": {"type": "reinforce"}}
    [problem] = refusals(sampling__task_sampler=CHOOSERS["greso"], **alone)
    assert (problem.pointer, problem.code) == ("/batch/episodes_per_task", "out_of_range")
    assert problem.hint == "Set at least 2, or task_sampler: uniform in /sampling."
    assert not list(refusals(sampling__task_sampler=CHOOSERS["filter_solved"], **alone))


def test_a_list_that_is_too_short_or_too_long_is_refused():
    base = {
        "environment": {"type": "reasoning_gym", "training": 40},
        "agents": {"solver": {}},
        "policies": {"solver": {"model": {"type": "folder", "path": "/models/tiny"}}},
    }
    for sampler, training, legal in (
        ({"tasks": 41}, 40, "Set 6 to 40."),
        ({}, 4, "Set at most 4 in /batch/tasks_per_step."),
    ):
        changes = base | {"environment": {"type": "reasoning_gym", "training": training}}
        [problem] = [
            p
            for p in refusals(**changes, sampling__task_sampler={"type": "vade", **sampler})
            if "task_sampler" in p.pointer
        ]
        assert (problem.pointer, problem.code, problem.hint) == ("/sampling/task_sampler/tasks", "out_of_range", legal)
    assert not [p for p in refusals(**base, sampling__task_sampler="vade") if "task_sampler" in p.pointer]
