"""Suites and evaluations over REST: versions that stay, cells that are runs without training, figures of their rows."""

import re
from typing import Any

import pytest

from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.evaluations.models import EvaluationCell, ModelEvaluation, SuiteVersion
from flexmarl.controlplane.runs.models import Run
from tests.support.controlplane import key, make_dataset, set_state
from tests.support.evaluated import play_cell

pytestmark = pytest.mark.django_db
HOT_COLD = {"name": "hot_cold", "environment": {"type": "hot_cold"}, "tasks": 4}
SMALL, OTHER = {"model": {"type": "factory"}}, {"name": "other", "model": {"type": "factory", "size": "M"}}


def post(api, path: str, body: dict[str, Any]):
    return api.post(f"/api/v1/{path}", body, format="json", HTTP_IDEMPOTENCY_KEY=key())


def save(api, name: str = "games", **content: object):
    return post(api, "suites", {"name": name, "content": {"parts": [HOT_COLD], **content}})


def evaluate(api, *entries: object, name: str = "first", **content: object):
    suite = save(api, **content).json()["suite"]
    return post(api, "evaluations", {"name": name, "suite": suite, "entries": entries or (SMALL, OTHER)})


def errors(answer, status: int = 400) -> list[tuple[str, str]]:
    assert answer.status_code == status, answer.content
    return [(one["pointer"], one["code"]) for one in answer.json()["errors"]]


def test_a_suite_for_a_checkpoint_begins_with_the_tasks_of_its_run_and_leads_back(browser, editor, make_run) -> None:
    run = make_run(editor)
    asked = f"run={run.key}&step=3"
    empty = browser.get(f"/evaluations/new?{asked}").content.decode()
    assert f'href="/suites/new?{asked.replace("&", "&amp;")}"' in empty, "what was asked is not lost"
    page = browser.get(f"/suites/new?{asked}")
    assert page.context["given"]["content"]["parts"][0]["environment"] == run.spec["environment"]
    assert f'data-then="/evaluations/new?{asked.replace("&", "&amp;")}"' in page.content.decode()


def test_replies_of_a_suite_are_as_long_as_its_environment_asks_for_unless_it_says_less(api, browser) -> None:
    page = browser.get("/suites/new?start=chat_dataset").content.decode()
    assert 'name="max_tokens" value=""' in page, "not the word None, which no number is"
    assert save(api, sampling={"max_tokens": None}).json()["content"]["sampling"]["max_tokens"] is None


def test_a_suite_may_begin_with_the_rows_that_a_dataset_of_ones_own_holds_out(api, browser, editor) -> None:
    version = make_dataset(actor_of_user(editor), rows=200)
    page = browser.get(f"/suites/new?start={version.dataset_id}")
    assert f'<option value="{version.dataset_id}" selected>sums v1</option>' in " ".join(page.content.decode().split())
    (part,) = page.context["given"]["content"]["parts"]
    assert (part["name"], part["tasks"]) == ("sums", version.held_out)
    assert save(api, parts=[part]).json()["content"]["parts"][0]["environment"]["dataset"]["name"] == "sums"


def test_a_suite_is_complete_and_its_versions_stay(api, editor) -> None:
    first = save(api)
    assert first.status_code == 201, first.content
    body = first.json()
    assert body["content"]["parts"][0]["environment"]["type"] == "hot_cold"
    assert len(body["content"]["parts"][0]["environment"]) > 1, "the defaults of today are not pinned"
    assert save(api, attempts=4, greedy=False).json()["number"] == 2
    assert api.get(body["url"]).json() == body
    assert SuiteVersion.objects.count() == 2


def test_each_model_plays_each_part_in_a_run_that_trains_nothing(api, editor) -> None:
    answer = evaluate(api)
    assert answer.status_code == 201, answer.content
    body = answer.json()
    assert [row["label"] for row in body["table"]] == ["factory S", "other"]
    assert body["state"] == "waiting"
    specs = [run.spec for run in Run.objects.order_by("no")]
    assert [spec["budget"]["train_steps"] for spec in specs] == [0, 0]
    assert not any(agent["trainable"] for spec in specs for agent in spec["agents"].values())
    for spec in specs:
        del spec["policies"], spec["name"]
    assert specs[0] == specs[1], "the models do not play the same"


def played(api, **content: object) -> dict[str, Any]:
    """Evaluate two models with four sampled attempts; the first solves half of what the second does."""
    body = evaluate(api, attempts=4, greedy=False, **content).json()
    runs = [cell.run for cell in EvaluationCell.objects.order_by("entry")]
    play_cell(runs[0], {task: [True, False, None, False] for task in range(4)})
    play_cell(runs[1], {task: [True, True, False, False] for task in range(4)})
    return api.get(body["url"]).json()


def test_figures_are_those_of_the_attempts(api, editor) -> None:
    body = played(api)
    assert (body["state"], body["ks"]) == ("done", [1, 2, 4])
    [first], [second] = [row["cells"] for row in body["table"]]
    assert (first["attempts"], first["attempts_failed"], first["solved"]) == (12, 4, 4)
    assert first["pass_at"]["1"]["value"] == pytest.approx(1 / 3)
    assert first["pass_at"]["4"] is None, "three attempts cannot tell pass@4"
    assert second["pass_at"]["2"]["value"] == pytest.approx(1 - 1 / 6)
    assert second["pass_at"]["1"]["method"] == "bootstrap"
    assert second["seats"] == {"guesser": 0.5, "hinter": 0.5}
    assert (second["tokens"], second["attempt_seconds"]) == (96, pytest.approx(2.0))


def test_an_attempt_that_was_played_again_counts_once_and_a_retry_replaces_what_was_there(api, editor) -> None:
    body = played(api)
    run = EvaluationCell.objects.get(entry=0).run
    play_cell(run, {0: [True, True, True, True]}, attempt=2)
    cell = api.get(body["url"]).json()["table"][0]["cells"][0]
    assert (cell["attempts"], cell["solved"]) == (13, 7)
    play_cell(run, {task: [False] * 4 for task in range(4)}, first=4)
    cell = api.get(body["url"]).json()["table"][0]["cells"][0]
    assert (cell["attempts"], cell["solved"], cell["tasks_played"]) == (16, 0, 4)


def test_the_leaderboard_ranks_models_that_played_everything(api, editor) -> None:
    body = played(api)
    board = api.get(f"/api/v1/suites/{body['suite_id']}/leaderboard").json()
    assert [row["label"] for row in board["rows"]] == ["other", "factory S"]
    assert [row["significant"] for row in board["rows"]] == [None, False], "four tasks cannot tell"
    assert board["rows"][1]["behind_best"] == pytest.approx(0.5 - 1 / 3)
    set_state(EvaluationCell.objects.get(entry=0).run, status="running")
    board = api.get(f"/api/v1/suites/{body['suite_id']}/leaderboard").json()
    assert [row["label"] for row in board["rows"]] == ["other"]


def test_a_cell_that_failed_says_why_and_is_retried(api, editor) -> None:
    body = evaluate(api).json()
    run = EvaluationCell.objects.get(entry=0).run
    set_state(run, status="failed", reason_text="no episode finished: environment: step", pending_verb="")
    body = api.get(body["url"]).json()
    cell = body["table"][0]["cells"][0]
    assert (cell["state"], cell["reason"]) == ("failed", "no episode finished: environment: step")
    assert "retry" in cell["next_step"]
    assert "retry" in body["allowed_actions"]
    assert post(api, f"evaluations/{body['id']}/retry", {}).status_code == 200
    assert run.operations.first().verb == "retry"
    again = post(api, f"evaluations/{body['id']}/retry", {})
    assert (again.status_code, again.json()["code"]) == (409, "invalid_state")


def test_a_stop_pauses_what_plays_and_a_resume_goes_on(api, editor) -> None:
    body = evaluate(api).json()
    run = EvaluationCell.objects.get(entry=0).run
    set_state(run, status="running", pending_verb="")
    assert post(api, f"evaluations/{body['id']}/stop", {"entries": [0]}).status_code == 200
    assert run.operations.first().verb == "pause"
    set_state(run, status="paused", pending_verb="")
    assert api.get(body["url"]).json()["table"][0]["cells"][0]["state"] == "stopped"
    assert post(api, f"evaluations/{body['id']}/resume", {"entries": [0]}).status_code == 200
    assert run.operations.first().verb == "resume"


def test_replies_are_as_long_as_an_environment_asks_for_where_a_suite_says_nothing(api, editor, browser) -> None:
    suite = save(api).json()
    assert suite["content"]["sampling"]["max_tokens"] is None
    assert evaluate(api, SMALL).status_code == 201
    run = Run.objects.get()
    assert {agent["sampling"]["max_tokens"] for agent in run.spec["agents"].values()} == {None}
    for page in ("/suites/new", f"/suites/new?from={suite['suite']}"):
        assert re.search(r'name="max_tokens" value=""', browser.get(page).content.decode()), page


@pytest.mark.parametrize(
    ("content", "pointer"),
    [
        ({"attempts": 3}, "/content"),
        ({"parts": [HOT_COLD, HOT_COLD]}, "/content/parts"),
        ({"parts": [{**HOT_COLD, "environment": {"type": "no_such"}}]}, "/content/parts/0/environment/type"),
    ],
)
def test_a_suite_that_cannot_be_played_is_refused_by_its_field(api, editor, content, pointer) -> None:
    found = errors(save(api, **content))
    assert pointer in [one for one, _ in found], found
    assert not SuiteVersion.objects.exists()


def test_a_model_that_cannot_play_is_refused_and_nothing_is_left(api, editor) -> None:
    unknown = {"model": {"type": "checkpoint", "run": "no-such-run", "step": 3}}
    assert errors(evaluate(api, SMALL, unknown)) == [("/entries/1/model/run", "unknown_run")]
    unknown = {"model": {"type": "package", "name": "other"}}
    assert errors(evaluate(api, SMALL, unknown)) == [("/entries/1/model/name", "invalid")]
    neither = evaluate(api, {}).json()["errors"][0]
    assert (neither["pointer"], neither["detail"]) == ("/entries/0", "send either model or external")
    alone = {"external": {"url": "https://api.example.org/v1", "model": "large"}}
    assert errors(evaluate(api, SMALL, alone)) == [("/entries/1/external", "not_with_external")]
    assert errors(evaluate(api, SMALL, SMALL)) == [("/entries/1/name", "not_unique")]
    assert not ModelEvaluation.objects.exists()
    assert not Run.objects.exists()


def test_making_and_deleting_one_is_in_the_trail(api, editor) -> None:
    body = played(api)
    assert api.delete(body["url"], HTTP_IDEMPOTENCY_KEY=key()).status_code == 204
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"suite.save", "evaluation.create", "evaluation.delete"} <= actions
    assert Run.objects.count() == 2, "runs stay"
