"""How often rows of a dataset were solved: over the runs of this version that a caller may read."""

import json
from typing import Any

import pytest

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.store import partitions
from tests.controlplane.test_datasets import errors, post, save, sums
from tests.support.controlplane import make_person

pytestmark = pytest.mark.django_db
EPISODE = """
INSERT INTO store.episode (run_id, draw, member, attempt, origin, status, cohort, scores, team_score, solved, turns,
  tokens, pins, task, started_at, finished_at)
VALUES (%s, %s, 0, 1, 'train', %s, 0, '{}', %s, %s, 1, 4, '{}', %s, now(), now())
"""


def run_of(api, name: str = "sums", version: int = 1) -> Run:
    spec = {"environment": {"dataset": {"name": name, "version": version}}, "evaluation": {"tasks": 2}}
    made = post(api, "runs", {"template": "chat_dataset", "spec": spec, "start": False})
    assert made.status_code == 201, made.content
    run = Run.objects.get(pk=made.json()["id"])
    partitions.ensure(store_connection(), run.no)  # as its start would
    return run


def play(run: Run, *played: tuple[int, float, str]) -> None:
    """Write episodes: the number in the row's question, the team's score, and the status."""
    for draw, (number, score, status) in enumerate(played):
        task = json.dumps({"title": "", "facts": {"question": f"What is {number}+1?", "answer": str(number + 1)}})
        store_connection().execute(EPISODE, [run.no, draw, status, score, score >= 1.0, task])


def rates(api, version: dict[str, Any], *places: int) -> dict[str, Any]:
    found = api.get(f"{version['url']}/solve-rates?{'&'.join(f'place={place}' for place in places)}")
    assert found.status_code == 200, found.content
    return found.json()


def test_episodes_of_all_runs_of_the_version_are_counted_and_failed_ones_are_not(api) -> None:
    version = save(api, sums(40)).json()
    assert rates(api, version, 1, 2) == {"runs": 0, "rows": []}
    one, other = run_of(api), run_of(api)
    play(one, (0, 1.0, "finished"), (0, 0.5, "finished"), (3, 0.0, "finished"), (0, 0.0, "failed"))
    play(other, (0, 0.0, "finished"))
    assert rates(api, version, 1, 2, 4) == {
        "runs": 2,
        "rows": [
            {"place": 1, "episodes": 3, "solved": 1, "mean_score": 0.5},
            {"place": 4, "episodes": 1, "solved": 0, "mean_score": 0.0},
        ],
    }
    newer = save(api, sums(50)).json()
    assert rates(api, newer, 1) == {"runs": 0, "rows": []}, "runs of another version play other rows"


def test_runs_that_a_caller_may_not_read_are_not_counted(api, client_of) -> None:
    version = save(api, sums(40)).json()
    play(run_of(api), (0, 1.0, "finished"))
    stranger = client_of(make_person("mallory", "editor", "other"))
    assert stranger.get(f"{version['url']}/solve-rates?place=1").status_code == 404


def test_rows_are_asked_for_by_their_places_at_most_two_hundred(api) -> None:
    version = save(api, sums(40)).json()
    assert rates(api, version) == {"runs": 0, "rows": []}
    for query in ("?place=x", f"?{'&'.join(f'place={n}' for n in range(1, 202))}"):
        assert errors(api.get(f"{version['url']}/solve-rates{query}"))[0][0] == "place"
