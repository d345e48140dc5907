"""Suites and evaluations over REST: versions that stay, cells that are runs without training, figures of their rows."""

from typing import Any

import pytest

from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.evaluations.models import Evaluation, EvaluationCell, SuiteVersion
from flexmarl.controlplane.runs.models import Run
from tests.support.controlplane import key

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
