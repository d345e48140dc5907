"""A run names logged conversations to replay: found with the submitter's rights, pinned by digest, or refused."""

from typing import Any

import pytest
from django.utils import timezone

from flexmarl.controlplane.runs.model_sources import CheckpointSources
from tests.controlplane.test_datasets import CHAT, errors, post, save
from tests.controlplane.test_demonstrations import lines, refused, talks
from tests.support.controlplane import key

pytestmark = pytest.mark.django_db
TALKS = [
    {"messages": [{"role": "user", "content": f"{n}+1?"}, {"role": "assistant", "content": f"{n + 1}"}], "by": n}
    for n in range(60)
]
CALLS = [
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": "{}"}}]},
    {"role": "tool", "content": "There."},
    {"role": "assistant", "content": "There."},
]


def plan(api, dataset: object, spec: dict[str, Any] | None = None, **environment: Any):
    named = {"dataset": dataset, **environment}
    whole = {"environment": named, "policies": {"solver": {"model": CHAT}}, "evaluation": {"tasks": 1}, **(spec or {})}
    return post(api, "runs/plan", {"template": "chat_logged", "spec": whole})


def test_a_run_pins_the_version_and_digest_of_what_it_replays(api) -> None:
    version = talks(api, TALKS)
    planned = plan(api, {"name": "talks", "digest": "0" * 64})
    assert (planned.status_code, planned.json()["errors"]) == (200, []), planned.content
    environment = planned.json()["spec"]["environment"]
    counts = {"training": version["training"], "held_out": version["held_out"]}
    pinned = {"name": "talks", "version": 1, "project": "default", "digest": version["digest"], **counts}
    assert (environment["type"], environment["dataset"]) == ("logged", pinned)
    made = post(api, "runs", {"name": "replayed", "template": "", "spec": planned.json()["spec"]})
    assert made.status_code == 201, made.content
    place = api.get(f"{version['url']}/rows").json()["results"][0]["place"]
    rates = api.get(f"{version['url']}/solve-rates?place={place}").json()
    assert rates["runs"] == 1


def test_conversations_with_calls_are_a_column_of_their_own(api) -> None:
    rows = [{"question": f"{n}?", "talk": CALLS, "functions": [{"name": "find"}]} for n in range(60)]
    saved = save(api, lines(rows), "calls", {"prompt": "question"}, "calls.jsonl")
    assert saved.status_code == 201, saved.content
    columns = {"column": "talk", "tools_column": "functions"}
    assert refused(plan(api, {"name": "calls"}, **columns)) == []


@pytest.mark.parametrize(
    ("environment", "wrong"),
    [
        ({"column": "bi"}, ("/environment/column", "unknown_column", "Did you mean by?")),
        ({"tools_column": "bi"}, ("/environment/tools_column", "unknown_column", "Did you mean by?")),
        ({"column": "by"}, ("/environment/dataset/name", "not_logged", "Import it without such rows")),
        ({"scores": ["judge"]}, ("/environment/scores/0/type", "", "")),
        ({"scores": [{"type": "exact", "pays": "team"}]}, ("/environment/scores/0/pays", "", "")),
        ({"patch_writer": "hinted"}, ("/environment/patch_writer", "", "")),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_field_and_rule(api, environment, wrong) -> None:
    talks(api, TALKS)
    [(pointer, code, hint)] = refused(plan(api, {"name": "talks"}, **environment))
    assert pointer == wrong[0]
    assert not wrong[1] or (code == wrong[1] and hint.startswith(wrong[2]))


def gone_meanwhile(monkeypatch, archive) -> None:
    """Let something be archived between the look that pins it and the one that reads it."""
    reading = CheckpointSources.refusals

    def late(self, spec):
        archive()
        return reading(self, spec)

    monkeypatch.setattr(CheckpointSources, "refusals", late)


@pytest.mark.parametrize("template", ["chat_logged", "chat_dataset"])
def test_a_dataset_that_is_archived_while_its_run_is_submitted_is_refused(api, monkeypatch, template) -> None:
    from flexmarl.controlplane.datasets.models import Dataset

    talks(api, TALKS)
    gone_meanwhile(monkeypatch, lambda: Dataset.objects.update(archived_at=timezone.now()))
    whole = {"environment": {"dataset": {"name": "talks"}}, "policies": {"solver": {"model": CHAT}}}
    found = refused(post(api, "runs/plan", {"template": template, "spec": whole}))
    assert ("/environment/dataset/name", "unknown_dataset") in [one[:2] for one in found]


def test_another_dataset_and_one_that_nobody_named_are_refused(api, person, client_of) -> None:
    from flexmarl.controlplane.accounts.models import Project

    talks(api, TALKS)
    assert [one[:2] for one in refused(plan(api, {"name": "talkz"}))] == [
        ("/environment/dataset/name", "unknown_dataset")
    ]
    Project.objects.create(name="other")
    stranger = client_of(person("editor", project="other"))
    whole = {
        "environment": {"dataset": {"name": "talks", "project": "default"}},
        "policies": {"solver": {"model": CHAT}},
    }
    body = {"name": "mine", "project": "other", "template": "chat_logged", "spec": whole}
    made = stranger.post("/api/v1/runs", body, format="json", HTTP_IDEMPOTENCY_KEY=key())
    assert ("/environment/dataset/name", "unknown_dataset") in errors(made, made.status_code)
    assert made.status_code in (400, 422)


def test_a_writer_of_thoughts_is_an_agent_that_does_not_learn(api) -> None:
    talks(api, TALKS)
    asked = {"name": "talks"}
    agents = {"solver": {}, "writer": {}}
    policies = {"solver": {"model": CHAT}, "writer": {"model": CHAT}}
    [(pointer, code, _)] = refused(
        plan(api, asked, {"agents": agents, "policies": policies}, patch_writer="off_policy")
    )
    assert (pointer, code) == ("/agents/writer/trainable", "writer_is_frozen")
    frozen = {**agents, "writer": {"trainable": False}}
    assert refused(plan(api, asked, {"agents": frozen, "policies": policies}, patch_writer="off_policy")) == []
    branches = {"sampling": {"branch_controller": "at_grpo_tree"}, "algorithm": {"advantage": {"type": "grpo"}}}
    codes = {one[1] for one in refused(plan(api, asked, branches))}
    assert "not_with_logged" in codes


@pytest.mark.parametrize(
    ("algorithm", "code"),
    [
        ({"advantage": {"type": "two_level", "per_turn": True}}, "not_with_two_level"),
        ({"advantage": {"type": "two_level"}, "shaping": {"type": "marti"}}, "not_with_two_level"),
    ],
)
def test_two_levels_say_what_they_do_not_go_with(api, algorithm, code) -> None:
    talks(api, TALKS)
    assert code in {one[1] for one in refused(plan(api, {"name": "talks"}, {"algorithm": algorithm}))}
    scored = {"template": "hot_cold", "spec": {"algorithm": {"advantage": {"type": "two_level"}}}}
    assert "needs_turn_rewards" in {one[1] for one in refused(post(api, "runs/plan", scored))}


def test_the_page_of_conversations_offers_to_replay_them(api, browser) -> None:
    version = talks(api, TALKS)
    url = f"/runs/new?template=chat_logged&dataset={version['dataset']}"
    assert url.replace("&", "&amp;") in browser.get(f"/datasets/{version['dataset']}").content.decode()
    page = browser.get(url)
    named = {"name": "talks", "version": 1, "project": "default"}
    assert page.context["data"]["dataset"] == {"named": named, "held_out": version["held_out"]}
    for pointer in ("dataset", "scores", "most_patches", "patch_writer"):
        assert f'data-pointer="/environment/{pointer}"' in page.content.decode()
