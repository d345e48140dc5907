"""Ordered runs: what the core tells when the clock, not the seed, decided."""

import pytest

from flexmarl.contracts.wire import EpisodeOutcome
from tests.unit.orchestrator.test_cohorts import draws_of, quiet, settle


def outcomes(cluster, draw, **lost):
    played = next(x.command for x in cluster.open.values() if draw in draws_of(x.command))
    finished = [cluster.episode(member, played) for member in range(2)]
    return [*finished, EpisodeOutcome(member=2, attempt=3, status="failed", **lost)]


@pytest.mark.parametrize(
    ("ordered", "lost", "told"),
    [
        (True, {"reason": "engine: no engine answered", "by_clock": True}, True),
        (True, {"reason": "environment: ValueError"}, False),
        (False, {"reason": "engine: no engine answered", "by_clock": True}, False),
    ],
)
def test_an_episode_that_the_clock_ended_is_told_in_an_ordered_run(ordered, lost, told):
    cluster = quiet(mechanisms__ordered=ordered, batch__min_members=2)
    settle(cluster, 1, outcomes(cluster, 1, **lost))
    found = [note for note in cluster.notes if note.text.startswith("ordered:")]
    assert bool(found) is told
    if told:
        assert found[0].target == "draw:1"
        assert lost["reason"] in found[0].text
