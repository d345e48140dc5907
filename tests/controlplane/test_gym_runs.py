"""Data of NeMo Gym is imported unchanged, and a run names it with the server that plays it."""

from typing import Any

import pytest

from tests.controlplane.test_datasets import CHAT, errors, post, save, upload
from tests.controlplane.test_demonstrations import lines, refused
from tests.support.gym_endpoint import row

pytestmark = pytest.mark.django_db
ROWS = [row(f"Add {n} and read.", 3 + n, answer=None, agent_ref={"name": "counter"}) for n in range(60)]
MAPPING = {"request": "responses_create_params"}


def plan(api, environment: dict[str, Any], **spec: Any):
    whole = {"environment": environment, "policies": {"player": {"model": CHAT}}, "evaluation": {"tasks": 1}, **spec}
    return post(api, "runs/plan", {"template": "nemo_gym", "spec": whole})


def test_rows_are_kept_as_they_are_and_a_run_pins_them(api) -> None:
    saved = save(api, lines(ROWS), "counter", MAPPING, "train.jsonl")
    assert saved.status_code == 201, saved.content
    version = saved.json()
    assert version["columns"] == list(ROWS[0]), "a verifier reads what it likes"
    shown = api.get(f"{version['url']}/rows").json()["results"][0]
    assert {name: shown["columns"][name] for name in ROWS[0]} in ROWS
    assert [one["role"] for one in shown["messages"]] == ["system", "user"]
    named = {"url": "https://gym.example.org/shop", "dataset": {"name": "counter"}}
    for environment in (named, {"type": "nemo_gym_url", **named}):  # a type may be left to the template
        planned = plan(api, environment)
        assert (planned.status_code, planned.json()["errors"]) == (200, []), planned.content
        pinned = planned.json()["spec"]["environment"]
        assert (pinned["type"], pinned["dataset"]["digest"]) == ("nemo_gym_url", version["digest"])


def test_a_column_of_requests_is_suggested(api) -> None:
    assert upload(api, lines(ROWS), "train.jsonl").json()["mapping"] == {**MAPPING, "answer": ""}


@pytest.mark.parametrize(
    ("request_column", "code", "words"),
    [
        ("Add 2.", "bad_request", "is not an object with input and tools"),
        ({"input": []}, "bad_request", "input: is neither a text nor a list of items"),
        ({"input": [{"role": "user", "content": " "}]}, "no_question", "has words"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "bad_request", "is not text"),
    ],
)
def test_a_row_without_a_question_is_named(api, request_column: object, code: str, words: str) -> None:
    saved = save(api, lines([*ROWS, {"responses_create_params": request_column}]), "counter", MAPPING, "train.jsonl")
    assert errors(saved) == [("/file/61/responses_create_params", code)]
    assert words in saved.json()["errors"][0]["detail"]


def test_what_cannot_be_played_is_refused_with_field_and_rule(api) -> None:
    plain = [{"question": f"{n}?", "answer": n} for n in range(60)]
    save(api, lines(plain), "plain", {"prompt": "question", "answer": "answer"}, "plain.jsonl")
    url = {"url": "https://gym.example.org"}
    assert [one[:2] for one in refused(plan(api, {**url, "dataset": {"name": "plain"}}))] == [
        ("/environment/dataset/name", "not_of_gym")
    ]
    assert [one[:2] for one in refused(plan(api, url))] == [("/environment/dataset/name", "required")]
    wrong = {"url": "ws://gym.example.org", "dataset": {"name": "plain"}, "protocol": "mcp"}
    assert {one[0] for one in refused(plan(api, wrong))} == {"/environment/url", "/environment/protocol"}


def test_rows_that_all_ask_the_same_are_evaluated_as_they_are_trained(api) -> None:
    split = {"type": "share", "share": 0.0}
    saved = save(api, lines([row()] * 5), "same", MAPPING, "train.jsonl", split=split)
    assert saved.status_code == 201, saved.content
    environment = {"url": "https://gym.example.org", "protocol": "gymnasium", "dataset": {"name": "same"}}
    assert [one[:2] for one in refused(plan(api, environment))] == [("/evaluation/tasks", "too_few_rows")]
    assert refused(plan(api, {**environment, "evaluation_rows": "training"})) == []


def test_the_page_of_such_data_begins_a_run_of_it(api, browser) -> None:
    version = save(api, lines(ROWS), "counter", MAPPING, "train.jsonl").json()
    url = f"/runs/new?template=nemo_gym&dataset={version['dataset']}"
    assert url.replace("&", "&amp;") in browser.get(f"/datasets/{version['dataset']}").content.decode()
    suite = browser.get(f"/suites/new?start={version['dataset']}").content.decode()
    assert "nemo_gym_url" in suite
    page = browser.get(url)
    assert page.context["data"]["dataset"]["named"]["name"] == "counter"
    for pointer in ("dataset", "url", "secret", "protocol", "max_turns"):
        assert f'data-pointer="/environment/{pointer}"' in page.content.decode()
