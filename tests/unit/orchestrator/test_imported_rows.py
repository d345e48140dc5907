"""An archive or a pool that begins with rows of another run: as old as version 0, once in a step, the same whoever is
killed."""

import random

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.imported_rows import ImportedGroup, ImportedRowRef, ImportedSuccess, RowsImported
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from flexmarl.orchestrator import Orchestrator
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec
from tests.unit.orchestrator.test_rescue import RUN, TASKS, cuts, rescues

ARCHIVE = {"type": "archive", "share": 0.5, "max_age": 2, "begins_with": "earlier"}
ROLES = ("speaker", "listener")


class Elsewhere(FakeCluster):
    """Whose imported rows no group of its own played; what a group earns depends on its draw alone."""

    solved = True

    def made_by(self, sample, policy):
        return 0 if sample.draw < 0 else super().made_by(sample, policy)

    def settle(self, number, command, group, members=None):
        mine, self.rng = self.rng, random.Random(group.draw)
        try:
            return super().settle(number, command, group, members)
        finally:
            self.rng = mine

    def episode(self, member, command=None):
        found = super().episode(member, command)
        if self.solved or command is None or command.origin != "train":
            return found
        return found.model_copy(update={"solved": False, "team_score": 0.0, "scores": dict.fromkeys(ROLES, 0.0)})


def groups(count=40):
    return RowsImported(
        name="earlier",
        rows=4 * count,
        groups=tuple(
            ImportedGroup(draw=number - count, rows={role: rows_of(role) for role in ROLES}) for number in range(count)
        ),
    )


def rows_of(role):
    return tuple(
        ImportedRowRef(
            member=member, attempt=1, role=role, turn=0, advantages=(member - 0.5,) * 2, weight=1.0, tokens=6
        )
        for member in range(2)
    )


def successes():
    samples = tuple(SampleRef(role=role, turn=turn, tokens=3) for role in ROLES for turn in range(2))
    episode = EpisodeOutcome(
        member=7, attempt=2, status=EpisodeStatus.FINISHED, scores=dict.fromkeys(ROLES, 1.0), team_score=1.0,
        solved=True, samples=samples,
    )  # fmt: skip
    own = (ImportedSuccess(draw=task - TASKS, task=task, episode=episode) for task in range(TASKS))
    return RowsImported(name="earlier", rows=24, successes=tuple(own))


def rows_in(event):
    """Keys of what another run trained before."""
    own = [(group.draw, row) for group in event.groups for rows in group.rows.values() for row in rows]
    found = [(draw, row.member, row.attempt, row.role, row.turn) for draw, row in own]
    return found + [(one.draw, 7, 2, said.role, said.turn) for one in event.successes for said in one.episode.samples]


def started(event, solved=True, seed=2, faults=None, **changes):
    cluster = Elsewhere(make_spec(**changes), seed=seed, faults=faults or Faults())
    cluster.solved = solved
    cluster.trained = {key: (key[3], 0) for key in rows_in(event)}
    cluster.tell(event)
    cluster.verb(e.Verb.START)
    return cluster


def imported(cluster):
    """Cohort and policy -> imported draws that its step was taken on, each row once."""
    found = {}
    for cut in cluster.commands("cut_micro_batch"):
        rows = [(s.draw, s.member, s.turn) for s in cut.samples if s.draw < 0]
        assert bool(cut.replayed) or not rows, "what is imported counts as replayed"
        found.setdefault((cut.cohort, cut.ref.policy), []).extend(rows)
    assert all(len(rows) == len(set(rows)) for rows in found.values()), "never twice in a step"
    return {key: {draw for draw, *_ in rows} for key, rows in found.items() if rows}


def test_the_first_step_is_taken_on_imported_groups_and_none_when_they_are_too_old():
    cluster = started(groups(), sampling__replay=ARCHIVE, budget__train_steps=5)
    assert "40 groups of the imported rows earlier" in cluster.decisions[0].notes[0].text
    [one, *_] = cluster.core.progress().archive
    assert (one.origin, one.age, one.groups, one.rows) == ("imported", 0, 40, 80)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    found = imported(cluster)
    assert {cohort for cohort, _ in found} == {0, 1, 2}, "max_age 2: versions 0, 1 and 2 are trained on them"
    speaker = [found[cohort, "speaker"] for cohort in range(3)]
    assert sum(map(len, speaker)) == len(set().union(*speaker)), "max_uses 1"
    assert min(speaker[0]) == -40, "the oldest first"
    assert cluster.metrics["replay/age", "speaker", "max", 1] == 0.0
    progress = cluster.core.progress()
    assert all(one.origin == "run" for one in progress.archive)
    counted = sum(len(cut.samples) for cut in cluster.commands("cut_micro_batch") if cut.replayed)
    assert progress.rows_replayed == counted
    fresh = sum(len(cut.samples) for cut in cluster.commands("cut_micro_batch") if not cut.replayed)
    assert progress.samples_trained == fresh


def test_the_advantages_and_weights_are_those_that_came_with_the_rows():
    cluster = started(groups(6), sampling__replay=ARCHIVE).run()
    told = {(s.draw, s.role, s.member): s for cut in cuts(cluster, True) for s in cut.samples if s.draw < 0}
    assert told
    assert all(sample.advantages == (member - 0.5,) * 2 for (_, _, member), sample in told.items())


def test_an_imported_success_stands_in_the_first_step():
    cluster = started(successes(), solved=False, **RUN).run()
    assert cluster.status is RunStatus.COMPLETED
    found = imported(cluster)
    assert found[0, "speaker"] == set(range(-TASKS, 0))
    assert {cohort for cohort, _ in found} == {0, 1, 2, 3}, "max_age 6, max_uses 4"
    assert "an imported success of it is injected in the place of member 0" in rescues(cluster)[0].reason
    rows = [row for cut in cuts(cluster, True) for row in cut.samples]
    assert {(row.member, row.attempt) for row in rows} == {(7, 2)}
    assert all(value > 0 for row in rows for value in row.advantages)
    [one, *_] = cluster.core.progress().archive or [None]
    assert one is None or one.origin == "imported"


@pytest.mark.parametrize("event", [groups, successes])
def test_told_twice_or_after_the_first_step_nothing_comes_in_again(event):
    changes = {"sampling__replay": ARCHIVE} if event is groups else RUN
    cluster = started(event(), **changes)
    before = cluster.core.snapshot()
    cluster.tell(event())
    archive = Orchestrator.restore(cluster.spec, before).state
    assert cluster.core.state.archive == archive.archive
    assert cluster.core.state.choice.successes == archive.choice.successes
    late = started(RowsImported(name="none", rows=0), **changes).run(until=lambda x: x.core.state.step == 1)
    late.tell(event())
    assert not any(one.draw < 0 for own in late.core.state.archive.values() for one in own)
    assert not any(one.draw < 0 for one in late.core.state.choice.successes.values())


@pytest.mark.parametrize(("event", "solved"), [(groups, True), (successes, False)])
def test_an_ordered_run_is_taken_on_the_same_rows_whoever_dies_and_takes_over(event, solved):
    changes = ({"sampling__replay": ARCHIVE} if event is groups else RUN) | {"mechanisms__ordered": True}
    found = []
    for seed in (0, 2):
        faults = Faults(twice=0.3, child_death=0.01, uncommitted=0.05, refused=0.02, zombie=0.2) if seed else Faults()
        cluster = started(event(), solved, seed, faults, **changes)
        cluster.round_trip = seed == 2
        cluster.run()
        assert cluster.status is RunStatus.COMPLETED
        assert imported(cluster)
        found.append({key: cluster.micro_batches[key] for key in cluster.replayed})
    assert found[1:] == found[:1]


def test_a_new_attempt_begins_without_what_was_imported():
    cluster = started(groups(), sampling__replay=ARCHIVE)
    cluster.run(until=lambda x: x.core.state.step == 1)
    assert any(one.origin == "imported" for one in cluster.core.progress().archive)
    cluster.verb(e.Verb.KILL)
    cluster.run()
    while cluster.inbox:
        cluster.deliver(0)
    cluster.verb(e.Verb.RETRY)
    assert not cluster.core.state.archive
    assert not cluster.core.progress().archive
