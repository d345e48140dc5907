"""Limits of turns in the core: a task's episodes are as long as its longest success so far, and no limit before one."""

import random

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator import Orchestrator
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec
from tests.unit.orchestrator.fake_parts import refusals

TASKS = 6
IN_ORDER = {"type": "greso", "tasks": TASKS, "least_easy": 1.0, "least_hard": 1.0}
RUN = {"sampling__task_sampler": IN_ORDER, "sampling__turn_limit": {"type": "past_successes", "least": 3}}
"""Each step plays each of six tasks once."""


class Lasting(FakeCluster):
    """Member m of a group ends after two and m more turns of each role, where nothing ends it earlier; tasks with an
    even number are solved by member 1 in the first step and by member 2 from then on, others by nobody."""

    def settle(self, number, command, group, members=None):
        mine, self.rng, self.group = self.rng, random.Random(group.draw), group
        try:
            return super().settle(number, command, group, members)
        finally:
            self.rng = mine

    def episode(self, member, command=None):
        found = super().episode(member, command)
        if command is None or command.origin != "train":
            return found
        samples = [
            found.samples[0].model_copy(update={"role": role, "turn": turn})
            for turn in range(2 + member)
            for role in ("speaker", "listener")
        ]
        cut = self.group.turns and len(samples) > self.group.turns
        won = not cut and self.group.draw % 2 == 0 and member == (1 if command.cohort == 0 else 2)
        update = {"solved": won, "team_score": float(won), "scores": dict.fromkeys(("speaker", "listener"), float(won))}
        kept = samples[: self.group.turns] if cut else samples
        return found.model_copy(update=update | {"samples": tuple(kept)})


def run(seed=2, faults=None, **changes):
    cluster = Lasting(make_spec(**RUN | changes), seed=seed, faults=faults or Faults())
    cluster.verb(e.Verb.START)
    return cluster.run()


def limits(cluster):
    """Draw -> turns that its command says."""
    orders = [group for command in cluster.commands("play_groups") for group in command.groups]
    return {group.draw: group.turns for group in orders if group.draw < TASKS * 4}


def test_a_solved_task_has_the_turns_of_its_longest_success_and_others_have_no_limit():
    cluster = run()
    assert cluster.status is RunStatus.COMPLETED
    found = limits(cluster)
    assert all(found[draw] == 0 for draw in range(TASKS)), "nothing was solved before the first step"
    solved = [draw for draw in range(TASKS, 4 * TASKS) if found[draw]]
    assert {found[draw] for draw in solved} == {6}, "member 1: three turns of two roles; member 2 is cut off"
    assert len(solved) == 9, "half of the groups of three steps"
    told = [r for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.GROUP_LIMITED]
    assert {r.target for r in told} == {f"draw:{draw}" for draw in solved}
    assert "end after 6 turns: the longest success of its task had 6" in told[0].reason
    assert cluster.core.state.choice.turns.of_draw == {}


def test_no_limit_is_lower_than_the_least():
    cluster = run(sampling__turn_limit={"type": "past_successes", "least": 9})
    assert set(limits(cluster).values()) == {0, 9}


def test_without_a_limit_commands_say_nothing_of_turns():
    cluster = run(sampling__turn_limit="none")
    assert set(limits(cluster).values()) == {0}
    assert '"turns"' not in cluster.commands("play_groups")[-1].model_dump_json()
    assert not cluster.core.state.choice.turns.longest


def test_a_draw_keeps_its_limit_whoever_dies_and_takes_over():
    quiet = run(mechanisms__ordered=True)
    faults = Faults(twice=0.3, child_death=0.01, uncommitted=0.05, refused=0.02, zombie=0.2)
    struck = run(3, faults, mechanisms__ordered=True)
    assert limits(struck) == limits(quiet)
    spec = make_spec(**RUN | {"mechanisms__ordered": True})
    core = Orchestrator(spec)
    for number, (event, now) in enumerate(struck.log):
        if number % 7 == 0:
            core = Orchestrator.restore(spec, core.snapshot())
        assert core.handle(event, now).commands == struck.decisions[number].commands


@pytest.mark.parametrize(
    ("pointer", "code", "changes"),
    [
        ("/sampling/task_sampler/type", "needs_tasks", {"sampling__task_sampler": "uniform"}),
        (
            "/mechanisms/publication/type",
            "not_with_turn_limit",
            {"mechanisms": {"ordered": True, "publication": "delayed", "lag_policy": {"bound": 1}}},
        ),
        ("/reward/type", "not_with_turn_limit", {"reward": {"type": "service", "url": "http://scores"}}),
    ],
)
def test_what_would_be_wrong_is_refused_with_a_legal_value(pointer, code, changes):
    found = {(one.pointer, one.code): one.hint for one in refusals(**RUN | changes)}
    assert "et " in found[pointer, code]


@pytest.mark.parametrize(
    ("template", "code"), [("reference_game", "fixed_turns"), ("category_assistant", "not_with_turn_limit")]
)
def test_games_of_fixed_turns_or_with_rewards_of_turns_are_refused(template, code):
    with pytest.raises(SpecProblems) as refused:
        resolve(limited(), template=template)
    found = {(one.pointer, one.code): one.hint for one in refused.value.problems}
    assert found["/sampling/turn_limit/type", code] == "Set none."


def test_a_game_that_ends_by_itself_may_be_limited():
    assert resolve(limited(), template="hot_cold").spec.sampling.turn_limit.least == 10


def limited():
    return {"sampling": {"task_sampler": IN_ORDER | {"tasks": 64}, "turn_limit": "past_successes"}}
