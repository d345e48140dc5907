"""Groups of other sizes in the core: each draw keeps its number, all of them add up, and restarts count alike."""

import pytest

from flexmarl.contracts.events import Verb
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Origin
from flexmarl.orchestrator import Orchestrator
from tests.unit.orchestrator.asking import account, ask, freeze, until
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec
from tests.unit.orchestrator.fake_parts import refusals

TASKS, MEMBERS = 12, 6
IN_ORDER = {"type": "greso", "tasks": TASKS, "least_easy": 1.0, "least_hard": 1.0}
RUN = {"sampling__task_sampler": IN_ORDER, "batch__episodes_per_task": MEMBERS, "budget__train_steps": 6}
KINDS = {"fewer_when_solved": {"type": "fewer_when_solved"}, "mixed_outcomes": {"type": "mixed_outcomes", "most": 9}}


class Uneven(FakeCluster):
    """Even draws are solved by all members, odd ones by every other member."""

    def settle(self, number, command, group, members=None):
        self.playing = group.draw
        return super().settle(number, command, group, members)

    def episode(self, member, command=None):
        found = super().episode(member, command)
        won = float(self.playing % 2 == 0 or member % 2)
        return found.model_copy(
            update={"team_score": won, "scores": dict.fromkeys(("speaker", "listener"), won), "solved": won == 1.0}
        )


def run_of(kind, seed=2, faults=None, **changes):
    settings = {"sampling__members": KINDS.get(kind, kind) if isinstance(kind, str) else kind}
    found = Uneven(make_spec(**RUN | settings | changes), seed=seed, faults=faults or Faults())
    found.verb(Verb.START)
    return found


def sizes(cluster):
    """Cohort -> draw -> members."""
    found = {}
    for command in cluster.commands("play_groups"):
        if command.origin is Origin.TRAIN:
            for group in command.groups:
                assert found.setdefault(command.cohort, {}).setdefault(group.draw, group.members) == group.members
    return found


def commands(cluster):
    return [(n.no, n.command.model_dump_json()) for d in cluster.decisions for n in d.commands]


def test_solved_tasks_have_two_members_when_they_come_again():
    cluster = run_of("fewer_when_solved").run()
    assert cluster.status is RunStatus.COMPLETED
    found = sizes(cluster)
    assert set(found[0].values()) == set(found[1].values()) == {MEMBERS}, "nothing was played before"
    for cohort in (2, 3, 4, 5):
        assert found[cohort] == {draw: MEMBERS if draw % 2 else 2 for draw in found[cohort]}
    episodes = cluster.core.state.totals.train_episodes
    assert episodes.proposed == episodes.finished == sum(sum(own.values()) for own in found.values())
    assert not cluster.core.state.choice.members, "what is settled is forgotten"
    said = [r for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.GROUP_SIZED]
    assert len(said) == 4 * 3
    assert "has 2 members instead of 6: the last group of task" in said[0].reason


def test_the_budget_of_a_step_goes_to_the_open_tasks():
    found = sizes(run_of("mixed_outcomes").run())
    for cohort, own in found.items():
        assert sum(own.values()) == 6 * MEMBERS
        if cohort >= 2:
            assert min(own[draw] for draw in own if draw % 2) > max(own[draw] for draw in own if not draw % 2)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("neutral", [{"type": "fewer_when_solved", "least": MEMBERS}, KINDS["mixed_outcomes"]])
def test_neutral_settings_and_one_pass_decide_what_a_plain_run_does(ordered, neutral):
    steps = 6 if "least" in neutral else 1
    plain, other = (
        run_of(kind, mechanisms__ordered=ordered, budget__train_steps=steps).run() for kind in ("equal", neutral)
    )
    assert commands(plain) == commands(other)
    assert plain.metrics == other.metrics


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mechanisms__ordered": True},
        {"mechanisms__lag_policy": {"bound": 2}},
        {"mechanisms__lag_policy": {"bound": 2, "in_flight": "discard"}},
        {"sampling__group_filter": {"type": "dynamic_sampling", "draw_limit": 3}},
        {"batch__incomplete_group": "score"},
    ],
    ids=["plain", "ordered", "lag", "discard", "dynamic", "score"],
)
def test_episodes_add_up_whatever_happens(kind, changes):
    for seed in range(3):
        faults = Faults(twice=0.2, child_death=0.01, episode_failure=0.1, refused=0.02)
        cluster = run_of(kind, seed=seed, faults=faults, **changes).run()
        assert cluster.status in (RunStatus.COMPLETED, RunStatus.FAILED)
        episodes = cluster.core.state.totals.train_episodes
        assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
        assert not cluster.core.state.choice.members


@pytest.mark.parametrize("kind", KINDS)
def test_a_freeze_in_mid_step_proposes_the_same_again(kind):
    cluster = run_of(kind)
    state = cluster.core.state
    cluster.run(until=lambda x: state.cohort and 0 < len(state.cohort.open) < 6 and state.choice.members)
    playing = sum(state.choice.members.get(draw, MEMBERS) for draw in state.cohort.open)
    freeze(cluster)
    assert state.totals.train_episodes.cancelled == playing
    until(cluster, RunStatus.PAUSED)
    ask(cluster, Verb.RESUME)
    assert cluster.run().status is RunStatus.COMPLETED
    assert sizes(cluster)
    account(cluster)


def test_what_is_discarded_and_played_again_is_counted_by_its_own_size():
    cluster = run_of("fewer_when_solved", mechanisms__lag_policy={"bound": 2, "in_flight": "discard"}).run()
    played = [g.members for c in cluster.commands("play_groups") if c.origin is Origin.TRAIN for g in c.groups]
    episodes = cluster.core.state.totals.train_episodes
    assert episodes.cancelled
    assert episodes.proposed == sum(played)


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_takes_over_in_mid_step_counts_the_same(kind):
    cluster = run_of(kind, seed=5, faults=Faults(child_death=0.01)).run()
    spec = make_spec(**RUN | {"sampling__members": KINDS[kind]})
    core = Orchestrator(spec)
    for number, (event, now) in enumerate(cluster.log):
        if number % 7 == 0:
            core = Orchestrator.restore(spec, core.snapshot())
        assert core.handle(event, now).commands == cluster.decisions[number].commands
    assert core.snapshot() == cluster.core.snapshot()


@pytest.mark.parametrize(
    ("pointer", "code", "changes"),
    [
        ("/sampling/task_sampler/type", "needs_tasks", {"sampling__task_sampler": "uniform"}),
        ("/sampling/members/least", "out_of_range", {"batch__episodes_per_task": 1}),
        ("/sampling/members/least", "out_of_range", {"sampling__members": {"type": "mixed_outcomes", "least": 7}}),
        ("/mechanisms/redundancy/type", "not_with_members", {"mechanisms__redundancy": "extra_members"}),
        ("/sampling/keep_members", "not_with_members", {"sampling__keep_members": 2}),
    ],
)
def test_what_cannot_be_counted_is_refused_with_a_legal_value(pointer, code, changes):
    given = RUN | {"sampling__members": KINDS["mixed_outcomes"]}
    assert (pointer, code) in [(one.pointer, one.code) for one in refusals(**given | changes)]
    assert refusals(**given) == []
