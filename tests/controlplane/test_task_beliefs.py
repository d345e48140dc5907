"""What a task sampler believes of its tasks, over REST and on the run's page."""

from typing import Any

import pytest
import zstandard
from django.db import connection

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.controlplane.telemetry import task_beliefs
from flexmarl.orchestrator import Orchestrator
from tests.support.markup import markup

pytestmark = pytest.mark.django_db
TASKS = 60
STREAKS = {3: (2.0, 0.0, 4), 7: (0.0, 1.0, 5), 58: (0.0, 0.0, 5)}
"""Task -> groups in a row without variance, solved and missed, and after which step."""


@pytest.fixture
def run(make_run: Any, editor: Any) -> Any:
    sampling = {"task_sampler": {"type": "greso", "tasks": TASKS}}
    batch = {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4}
    return make_run(editor, "running", sampling=sampling, batch=batch)


@pytest.fixture
def believed(run: Any) -> None:
    """A snapshot of the driver, with what its sampler believes."""
    core = Orchestrator(ExperimentSpec.model_validate(run.spec))
    for task, (solved, missed, as_of) in STREAKS.items():
        core.state.choice.belief.put(TASKS, task, solved, missed, as_of)
    kept(run, zstandard.compress(core.snapshot()))


def kept(run: Any, snapshot: bytes) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE store.run_state SET snapshot = %s, snapshot_seq = 9 WHERE run_id = %s", [snapshot, run.no]
        )


def listed(api: Any, run: Any, query: str = "") -> Any:
    answer = api.get(f"/api/v1/runs/{run.key}/tasks{query}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def refused(api: Any, run: Any, query: str) -> list[tuple[str, str]]:
    answer = api.get(f"/api/v1/runs/{run.key}/tasks{query}")
    assert answer.status_code == 400, answer.content
    return [(one["pointer"], one["code"]) for one in answer.json()["errors"]]


def test_tasks_are_listed_in_pages_with_what_is_believed_of_each(api: Any, run: Any, believed: None) -> None:
    first = listed(api, run)
    assert (first["count"], len(first["results"]), first["results"][0]["belief"]) == (TASKS, 50, "not played yet")
    assert first["results"][3] == {
        "task": 3,
        "played_after": 4,
        "belief": "solved without variance, streak of 2: passed over with probability 0.75",
    }
    second = api.get(first["next"]).json()
    assert ([row["task"] for row in second["results"]], second["next"]) == (list(range(50, TASKS)), None)


def test_those_that_were_played_are_chosen(api: Any, run: Any, believed: None) -> None:
    assert [row["task"] for row in listed(api, run, "?played=yes")["results"]] == list(STREAKS)
    others = listed(api, run, "?played=no&limit=200")
    assert (others["count"], {row["played_after"] for row in others["results"]}) == (TASKS - len(STREAKS), {None})
    one = listed(api, run, "?played=yes&limit=2")
    assert [row["task"] for row in api.get(one["next"]).json()["results"]] == [58]


def test_before_the_first_snapshot_nothing_is_believed(api: Any, run: Any) -> None:
    assert listed(api, run, "?played=yes")["results"] == []
    assert {row["belief"] for row in listed(api, run)["results"]} == {"not played yet"}


def test_a_sampler_that_chooses_none_has_no_tasks(api: Any, browser: Any, make_run: Any, editor: Any, run: Any) -> None:
    other = make_run(editor)
    assert listed(api, other)["count"] == 0
    address = f"/runs/{other.key}/trajectories/tasks"
    assert "Its task sampler chooses none" in markup(browser.get(address))
    assert address not in markup(browser.get(f"/runs/{other.key}/trajectories"))
    assert f"/runs/{run.key}/trajectories/tasks" in markup(browser.get(f"/runs/{run.key}/trajectories"))


@pytest.mark.parametrize("cursor", ["x", "WyJ0YXNrIixmYWxzZSxbLTFdXQ", "WyJ0YXNrIixmYWxzZSxbImEiXV0"])
def test_cursors_that_are_none_are_refused(api: Any, run: Any, cursor: str) -> None:
    assert refused(api, run, f"?cursor={cursor}") == [("cursor", "not_a_cursor")]


def test_illegal_parameters_are_refused_by_name(api: Any, run: Any) -> None:
    assert refused(api, run, "?played=maybe") == [("played", "unknown_value")]
    assert refused(api, run, "?limit=201") == [("limit", "out_of_range")]


def test_a_snapshot_of_another_version_is_told_of(api: Any, browser: Any, run: Any) -> None:
    kept(run, zstandard.compress(b'{"schema": 0}'))
    answer = api.get(f"/api/v1/runs/{run.key}/tasks")
    assert (answer.status_code, answer.json()["code"]) == (409, task_beliefs.OtherSnapshot.code)
    assert "The snapshot cannot be read" in markup(browser.get(f"/runs/{run.key}/trajectories/tasks"))


def test_the_page_lists_them_and_leads_on(browser: Any, run: Any, believed: None) -> None:
    address = f"/runs/{run.key}/trajectories/tasks"
    page = markup(browser.get(address))
    assert "Of 60 tasks 1 were last solved without variance and 1 missed" in page
    assert "3 of 60 tasks played" in " ".join(page.split())
    following = browser.get(address).context["next_url"]
    assert "First page" in markup(browser.get(address + following))
    assert "streak of 2" in markup(browser.get(f"{address}?played=yes&cursor=broken")), "the first page instead"
