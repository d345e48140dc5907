"""A run names conversations to be warmed up on: found with the submitter's rights, pinned by digest, or refused."""

import json
from typing import Any

import pytest

from tests.controlplane.test_datasets import CHAT, errors, post, save
from tests.support.controlplane import key

pytestmark = pytest.mark.django_db
WHERE = "/policies/solver/warmup/demonstrations"
TALKS = [
    {"messages": [{"role": "user", "content": f"{n}+1?"}, {"role": "assistant", "content": f"{n + 1}"}], "by": n}
    for n in range(20)
]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def talks(api, rows: list[dict[str, Any]] = TALKS, name: str = "talks", **more: Any) -> dict[str, Any]:
    """Save a dataset of conversations; its version."""
    saved = save(api, lines(rows), name, {"messages": "messages", **more}, "talks.jsonl")
    assert saved.status_code == 201, saved.content
    return saved.json()


def warm(api, demonstrations: object, model: dict[str, Any] = CHAT, **warmup: Any):
    policy = {"model": model, "warmup": {"steps": 2, "demonstrations": demonstrations, **warmup}}
    spec = {"environment": {"type": "sums"}, "policies": {"solver": policy}}
    return post(api, "runs/plan", {"template": "chat_sums", "spec": spec})


def refused(planned) -> list[tuple[str, str, str]]:
    return [(one["pointer"], one["code"], one["hint"]) for one in planned.json()["errors"]]


def test_conversations_that_end_with_the_assistant_have_its_words_as_answers(api) -> None:
    version = talks(api)
    assert (version["mapping"]["answer"], version["columns"]) == ("", ["by"])
    row = api.get(f"{version['url']}/rows").json()["results"][3]
    assert (row["messages"], row["answer"]) == ([{"role": "user", "content": "3+1?"}], "4")


def test_a_conversation_that_asks_nothing_is_a_bad_row(api) -> None:
    alone = [{"messages": [{"role": "assistant", "content": "Hi"}], "answer": "1"}]
    assert errors(save(api, lines(alone), "talks", {"messages": "messages"})) == [("/file/1/messages", "no_question")]
    both = save(api, lines([{**TALKS[0], "answer": "1"}]), "talks", {"messages": "messages", "answer": "answer"})
    assert errors(both) == [("/file/1/messages", "no_question")]


def test_a_run_pins_the_version_and_digest_of_its_demonstrations(api) -> None:
    version = talks(api)
    planned = warm(api, {"dataset": {"name": "talks", "digest": "0" * 64}})
    assert (planned.status_code, planned.json()["errors"]) == (200, []), planned.content
    warmup = planned.json()["spec"]["policies"]["solver"]["warmup"]
    counts = {"training": version["training"], "held_out": version["held_out"]}
    assert warmup["demonstrations"] == {
        "dataset": {"name": "talks", "version": 1, "project": "default", "digest": version["digest"], **counts},
        "column": "",
    }
    assert (warmup["batch_size"], warmup["learning_rate"]) == (16, 1e-5)
    spec = planned.json()["spec"]
    talks(api, TALKS[:10])
    made = post(api, "runs", {"name": "warm", "template": "", "spec": spec})
    assert made.status_code == 201, made.content
    pinned = made.json()["spec"]["policies"]["solver"]["warmup"]["demonstrations"]["dataset"]
    assert (pinned["version"], pinned["digest"]) == (1, version["digest"])


@pytest.mark.parametrize(
    ("demonstrations", "wrong"),
    [
        ({"dataset": {"name": "talkz"}}, (f"{WHERE}/dataset/name", "unknown_dataset", "Did you mean talks?")),
        ({"dataset": {"name": "talks", "version": 2}}, (f"{WHERE}/dataset/version", "unknown_version", "It has 1.")),
        ({"dataset": {"name": "talks"}, "column": "bi"}, (f"{WHERE}/column", "unknown_column", "Did you mean by?")),
        (
            {"dataset": {"name": "talks"}, "column": "by"},
            (f"{WHERE}/column", "no_demonstrations", "Name a column with the reply or the conversation: by."),
        ),
        ({"column": "by"}, (f"{WHERE}/dataset", "required", "")),
        ({"dataset": {"name": "talks"}, "split": 1}, (f"{WHERE}/split", "unknown_field", "")),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_from_is_refused_with_field_and_rule(api, demonstrations, wrong) -> None:
    talks(api)
    [(pointer, code, hint)] = refused(warm(api, demonstrations))
    assert (pointer, code) == wrong[:2]
    assert not wrong[2] or hint == wrong[2]


def test_rows_without_answers_demonstrate_nothing_unless_a_column_does(api) -> None:
    save(
        api,
        lines([{"question": f"{n}?", "solution": f"It is {n}."} for n in range(20)]),
        "open",
        {"prompt": "question"},
    )
    [(pointer, code, hint)] = refused(warm(api, {"dataset": {"name": "open"}}))
    assert (pointer, code) == (f"{WHERE}/column", "no_demonstrations")
    assert hint == "Name a column with the reply or the conversation: solution."
    assert refused(warm(api, {"dataset": {"name": "open"}, "column": "solution"})) == []


def test_a_model_that_cannot_read_conversations_is_refused_by_name(api) -> None:
    talks(api)
    policy = {"warmup": {"steps": 2, "demonstrations": {"dataset": {"name": "talks"}}}}
    spec = {"policies": {"planner": policy}}
    planned = post(api, "runs/plan", {"template": "arithmetic", "spec": spec})
    [(pointer, code, hint)] = refused(planned)
    assert (pointer, code) == ("/policies/planner/warmup/demonstrations", "needs_chat_model")
    assert "planner" in planned.json()["errors"][0]["detail"]
    assert "language model" in hint


def test_steps_are_required_and_an_environment_without_demonstrations_says_what_to_name(api) -> None:
    talks(api)
    shown = {"dataset": {"name": "talks"}}
    spec = {"policies": {"solver": {"model": CHAT, "warmup": {"demonstrations": shown}}}}
    [(pointer, code, _)] = refused(post(api, "runs/plan", {"template": "chat_sums", "spec": spec}))
    assert (pointer, code) == ("/policies/solver/warmup/steps", "required")
    [(pointer, code, hint)] = refused(warm(api, None))
    assert (pointer, code) == ("/policies/solver/warmup", "no_demonstrations")
    assert "warmup.demonstrations" in hint


def test_a_dataset_of_a_project_that_one_may_not_read_is_not_there(api, person, client_of) -> None:
    from flexmarl.controlplane.accounts.models import Project

    talks(api)
    Project.objects.create(name="other")
    stranger = client_of(person("editor", project="other"))
    policy = {
        "model": CHAT,
        "warmup": {"steps": 2, "demonstrations": {"dataset": {"name": "talks", "project": "default"}}},
    }
    body = {"name": "mine", "project": "other", "template": "chat_sums", "spec": {"policies": {"solver": policy}}}
    made = stranger.post("/api/v1/runs", body, format="json", HTTP_IDEMPOTENCY_KEY=key())
    assert (f"{WHERE}/dataset/name", "unknown_dataset") in errors(made, made.status_code)
    assert made.status_code in (400, 422)
