"""The agents of runs in OpenAI's dialect, called by OpenAI's own client: replies, streams, refusals, who may ask."""

import json
from functools import partial
from typing import Any

import openai
import pytest

from flexmarl.contracts.plane_tokens import TokenPlane, check
from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.accounts.models import Membership, Project
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.playground import engines, questions
from flexmarl.controlplane.runs.models import Run
from tests.support import playground_stage
from tests.support.playground_stage import refused
from tests.support.store_story import digest

stage, client_for = playground_stage.stage, playground_stage.client_for
_one_connection = playground_stage._one_connection
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # under WSGI, in one piece
]
# what is answered


def test_a_chat_is_answered_by_the_live_engine(stage) -> None:
    answer = stage.chat(max_tokens=3, temperature=0, seed=7, logprobs=True)
    assert answer.choices[0].message.content == "round square big"
    assert answer.choices[0].finish_reason == "length"
    assert [entry.token for entry in answer.choices[0].logprobs.content] == ["round", " square", " big"]
    assert [entry.logprob for entry in answer.choices[0].logprobs.content] == [-0.5, -1.0, -1.5]
    assert (answer.model, answer.system_fingerprint) == (f"{stage.name}@1", digest(1)[:12])
    assert answer.usage.to_dict() == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    [asked] = stage.engine.asked
    assert (asked["prompt"], asked["seeds"], asked["temperature"]) == ([[1, 2]], [7], 0.0)
    assert (asked["model"], asked["version"], asked["digest"]) == ("solver", 1, digest(1))
    token = stage.engine.tokens[0].removeprefix("Bearer ")
    assert check("secret", token, stage.run.no, 0.0).plane is TokenPlane.ROLLOUT


def test_a_completion_takes_several_prompts_and_draws(stage) -> None:
    create = stage.client.completions.create
    answer = create(model=stage.name, prompt=["red", "square"], n=2, max_tokens=2, seed=5, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["blue round", "blue round", "big small", "big small"]
    assert stage.engine.asked[0]["seeds"] == [5, 6, 7, 8], "each draw has a seed of its own"
    assert answer.choices[0].logprobs.tokens == ["blue", " round"]
    assert answer.choices[0].logprobs.text_offset == [0, 4]
    assert create(model=stage.name, prompt=[1, 2], max_tokens=1).choices[0].text == "round"


def test_a_stop_word_ends_the_reply_and_is_no_part_of_it(stage) -> None:
    answer = stage.chat(max_tokens=6, stop=["big"], logprobs=True)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("round square", "stop")
    assert len(answer.choices[0].logprobs.content) == 2
    assert answer.usage.completion_tokens == 3, "the engine sampled the word that ends it"


@pytest.mark.parametrize("parts", [False, True])
def test_a_stream_says_the_same_piece_by_piece(stage, parts) -> None:
    stage.engine.parts = parts
    options = {"stream_options": {"include_usage": True}, "logprobs": True}
    chunks = list(stage.chat(max_tokens=3, stream=True, n=2, **options))
    said = {0: "", 1: ""}
    tokens = {0: [], 1: []}
    for chunk in chunks:
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
            tokens[choice.index] += [entry.token for entry in choice.logprobs.content] if choice.logprobs else []
    assert said == {0: "round square big", 1: "round square big"}
    assert tokens[0] == ["round", " square", " big"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices].count("length") == 2
    assert chunks[-1].usage.completion_tokens == 6
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(c.choices[0].text for c in stage.client.completions.create(
        model=stage.name, prompt="red", max_tokens=2, stream=True
    ))  # fmt: skip
    assert text == "blue round"


def test_messages_are_joined_by_a_blank(stage) -> None:
    messages = [
        {"role": "system", "content": "red"},
        {"role": "user", "content": [{"type": "text", "text": "blue"}]},
        {"role": "assistant", "content": "big"},
        {"role": "user", "content": "small"},
    ]
    stage.client.chat.completions.create(model=stage.name, messages=messages, max_tokens=1)
    assert stage.engine.asked[0]["prompt"] == [[1, 2, 5, 6]]


def test_what_is_not_said_is_as_in_training(stage) -> None:
    store_connection().execute("UPDATE store.sample SET role = 'speaker' WHERE run_id = %s", [stage.run.no])
    stage.chat()
    asked = stage.engine.asked[0]
    agent = stage.run.spec["agents"]["speaker"]
    assert asked["allowed_token_ids"] == [4, 5, 6, 7], "the words of its newest recorded turns"
    assert asked["max_tokens"] == stage.run.spec["environment"]["message_length"]
    assert asked["temperature"] == agent["sampling"]["temperature"]
    stage.chat(extra_body={"allowed_words": ["red", "blue"]})
    assert stage.engine.asked[1]["allowed_token_ids"] == [1, 2]
    stage.chat(extra_body={"allowed_words": []})
    assert stage.engine.asked[2]["allowed_token_ids"] == []


# who answers


NODE = {"token": "from-the-node", "digest": digest(0)}


def test_a_version_that_no_live_engine_holds_is_answered_by_a_node(stage) -> None:
    stage.node((202, {"since_s": 0.1}), (200, {"endpoint": stage.engine.url, **NODE}))
    answer = stage.chat(model=f"{stage.name}@0", max_tokens=1)
    assert answer.model == f"{stage.name}@0"
    assert stage.engine.node_asked[0] == {"run_id": stage.run.no, "policy": "solver", "version": 0}
    assert len(stage.engine.node_asked) == 2, "it waits for the engine to start"
    assert stage.engine.tokens == ["Bearer from-the-node"]


def test_an_engine_that_let_go_is_replaced_once(stage) -> None:
    stage.node((200, {"endpoint": stage.engine.url, "token": "n", "digest": digest(1)}))
    stage.engine.refuse.append((409, {"code": "not_held", "detail": "gone", "holds": {}}))
    assert stage.chat(max_tokens=1).choices[0].message.content == "round"
    stage.engine.refuse += [(409, {"code": "not_held", "detail": "gone", "holds": {}})] * 2
    assert refused(stage.chat, openai.InternalServerError)["code"] == "engine_failed"


def test_an_engine_that_is_late_is_told_with_its_bound_and_what_to_do(stage, monkeypatch) -> None:
    monkeypatch.setattr(engines, "LIVE_S", 1e-4)
    body = refused(stage.chat, openai.InternalServerError)
    assert body["code"] == "engine_failed"
    assert body["message"].startswith(f"{stage.name}@1: no answer within 0.0001 s: the run's engines play its episodes")
    stage.live(None)
    stage.node((200, {"endpoint": stage.engine.url, "token": "n", "digest": digest(1)}))
    monkeypatch.setattr(engines, "PLAY_S", 1e-4)
    assert "no whole answer within 0.0001 s" in refused(stage.chat, openai.InternalServerError)["message"]


def test_an_engine_that_starts_is_told_with_the_moment_to_ask_again(stage) -> None:
    stage.live(None)
    stage.node((202, {"since_s": 2.0}))
    with pytest.raises(openai.InternalServerError) as caught:
        stage.chat(extra_headers={"Prefer": "wait=0"})
    assert caught.value.status_code == 503
    assert caught.value.response.headers["Retry-After"] == "1"
    assert caught.value.body["code"] == "engine_starting"


def test_engines_that_are_all_in_use_are_waited_for(stage) -> None:
    stage.live(None)
    busy = (409, {"code": "engines_busy", "detail": "the 2 engines of box answer for other runs (numbers 4, 7)"})
    stage.node(busy, busy, (200, {"endpoint": stage.engine.url, "token": "n", "digest": digest(1)}))
    assert stage.chat(max_tokens=1).choices[0].message.content == "round"
    stage.node(busy)
    with pytest.raises(openai.InternalServerError) as caught:
        stage.chat(extra_headers={"Prefer": "wait=0"})
    assert (caught.value.status_code, caught.value.code) == (503, "no_engine_free")
    assert caught.value.response.headers["Retry-After"] == "5"
    assert "the 2 engines of box answer for other runs" in caught.value.message


def test_weights_that_are_gone_and_nodes_that_are_away_are_named(stage) -> None:
    stage.live(None)
    stage.node((409, {"code": "state_missing", "detail": "no complete manifest"}))
    body = refused(stage.chat, openai.ConflictError)
    assert (body["code"], "Use a newer version" in body["message"]) == ("version_gone", True)
    stage.node((409, {"code": "unsupported_model", "detail": "model_type 'gpt2' is not served"}))
    assert refused(stage.chat, openai.ConflictError)["code"] == "not_served"
    store_connection().execute("UPDATE store.node SET heartbeat_at = now() - interval '1 hour'")
    assert "No running node can start an engine" in refused(stage.chat, openai.InternalServerError)["message"]


def test_a_reply_that_the_engine_gives_up_is_no_answer(stage) -> None:
    stage.engine.give_up = True
    assert refused(stage.chat, openai.InternalServerError)["code"] == "engine_failed"
    with pytest.raises(openai.APIError, match="stopped the reply"):
        list(stage.chat(stream=True))


def test_talks_have_few_places_and_give_them_back(stage, monkeypatch) -> None:
    places = engines.QuestionSlots(1, "talks")
    monkeypatch.setattr(engines, "LIVE_PLACES", places)
    for _ in range(3):
        list(stage.chat(stream=True, max_tokens=1))
        stage.engine.give_up = True
        refused(stage.chat, openai.InternalServerError)
        stage.engine.give_up = False
    stage.live(None)
    stage.node((202, {"since_s": 0.1}))
    monkeypatch.setattr(engines, "PLAY_PLACES", engines.QuestionSlots(1, "talks"))
    for _ in range(2):  # who waited in vain holds nothing
        refused(partial(stage.chat, extra_headers={"Prefer": "wait=0"}), openai.InternalServerError)
    stage.live(1)
    places.take()
    with pytest.raises(openai.RateLimitError) as caught:
        stage.chat()
    assert caught.value.response.headers["Retry-After"] == "1"


# what is refused


IMPOSSIBLE: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "function"}]}, "tools/0", "invalid_value"),
    ({"tools": [{"type": "function", "function": {"name": "add"}}]}, "tools", "unsupported_parameter"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
    ({"frequency_penalty": 0.5}, "frequency_penalty", "unsupported_parameter"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"extra_body": {"top_k": 1.5}}, "top_k", "invalid_value"),
    ({"extra_body": {"min_p": -0.1}}, "min_p", "invalid_value"),
    ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty", "invalid_value"),
    ({"logit_bias": {"1": 5}}, "logit_bias", "unsupported_parameter"),
    ({"extra_body": {"colour": 1}}, "colour", "unknown_parameter"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
    ({"n": 9}, "n", "invalid_value"),
    ({"seed": True}, "seed", "invalid_value"),
    ({"stop": [""]}, "stop", "invalid_value"),
    ({"stop": ["a"] * 5}, "stop", "invalid_value"),
    ({"stop": ["two words"]}, "stop", "unknown_words"),
    ({"stop": ["nosuch"]}, "stop", "unknown_words"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
]


def test_what_cannot_be_honoured_is_refused_by_name(stage) -> None:
    for more, field, code in IMPOSSIBLE:
        body = refused(partial(stage.chat, **more))
        assert (body["param"], body["code"], body["type"]) == (field, code, "invalid_request_error")
        assert body["message"].startswith(f"{field}: ")
    assert stage.engine.asked == []


def test_a_ceiling_of_a_chat_may_be_high(stage) -> None:
    stage.chat(max_completion_tokens=100_000)
    assert stage.engine.asked[0]["max_tokens"] == questions.MOST_TOKENS
    body = refused(partial(stage.client.completions.create, model=stage.name, prompt="red", max_tokens=9999))
    assert (body["param"], body["code"]) == ("max_tokens", "invalid_value")


def test_neutral_values_say_nothing(stage) -> None:
    stage.chat(top_p=1, presence_penalty=0, tools=[], response_format={"type": "text"}, store=False, user="me")
    assert len(stage.engine.asked) == 1


def test_sampling_parameters_are_the_agents_own_unless_given(stage) -> None:
    stage.chat()
    stage.chat(top_p=0.5, extra_body={"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2})
    own, given = (asked["sampling"] for asked in stage.engine.asked)
    assert own == {"stop": [], "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert given == {"stop": [], "top_p": 0.5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2}


def test_unknown_words_are_named_with_some_known_ones(stage) -> None:
    body = refused(lambda: stage.chat("red purple green"))
    assert body["param"] == "messages"
    assert "'purple', 'green'" in body["message"]
    assert "red blue round" in body["message"]


def test_what_the_engine_refuses_is_passed_on(stage) -> None:
    stage.engine.refuse.append(
        (422, {"code": "bad_request", "detail": "prompt and max_tokens: 900 positions exceed 64"})
    )
    body = refused(stage.chat)
    assert (body["code"], body["param"]) == ("context_length_exceeded", "max_tokens")


@pytest.mark.parametrize(
    "name", ["nonsense", "nobody-0000/speaker", "{key}/nobody", "{key}/speaker@9", "{key}/speaker@x"]
)
def test_models_that_are_not_there(stage, name) -> None:
    body = refused(lambda: stage.chat(model=name.format(key=stage.run.key)), openai.NotFoundError)
    assert (body["code"], body["param"]) == ("model_not_found", "model")
    assert "GET /v1/models" in body["message"]


def test_an_archived_run_is_not_talked_to(stage) -> None:
    Run.objects.filter(pk=stage.run.pk).update(archived_at="2026-01-01T00:00:00Z")
    assert refused(stage.chat, openai.ConflictError)["code"] == "run_archived"
    assert list(stage.client.models.list()) == []


# who may ask


def test_models_are_listed_and_read(stage) -> None:
    assert [(m.id, m.object, m.owned_by) for m in stage.client.models.list()] == [
        (f"{stage.run.key}/{role}", "model", "default") for role in stage.run.spec["agents"]
    ]
    assert stage.client.models.retrieve(f"{stage.name}@0").to_dict()["version"] == 0


def test_who_may_not(stage, person, client_for) -> None:
    def asks(client: openai.OpenAI) -> None:
        client.completions.create(model=stage.name, prompt="red")

    stranger = client_for(person(ProjectRole.EDITOR, "otto", "elsewhere"))
    assert refused(lambda: asks(stranger), openai.NotFoundError)["code"] == "model_not_found"
    assert list(stranger.models.list()) == []
    both = person(ProjectRole.EDITOR, "bo", "elsewhere")
    Membership.objects.create(project=Project.objects.get(name="default"), user=both, role=ProjectRole.VIEWER)
    assert refused(lambda: asks(client_for(both)), openai.NotFoundError)["code"] == "model_not_found", "a viewer here"
    viewer = client_for(person(ProjectRole.VIEWER, "vera"))
    for call in (lambda: asks(viewer), viewer.models.list):
        body = refused(call, openai.PermissionDeniedError)
        assert (body["type"], "models:use" in body["message"]) == ("permission_error", True)
    reader = client_for(person(ProjectRole.EDITOR, "rita"), ["runs:read"])
    refused(lambda: asks(reader), openai.PermissionDeniedError)
    nobody = openai.OpenAI(
        base_url="http://testserver/v1", api_key="fmx_no", max_retries=0, http_client=stage.client._client
    )
    assert refused(lambda: asks(nobody), openai.AuthenticationError)["type"] == "authentication_error"


def test_a_browser_needs_its_csrf_token(stage, editor) -> None:
    from django.test import Client

    browser = Client(enforce_csrf_checks=True)
    browser.force_login(editor)
    answer = browser.post("/v1/completions", json.dumps({"model": stage.name}), content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")


def test_other_paths_and_methods_answer_in_the_same_shape(stage, client) -> None:
    assert client.get("/v1/embeddings").json()["error"]["code"] == "not_found"
    answer = client.get("/v1/completions")
    assert (answer.status_code, set(answer.json())) == (405, {"error"})


def test_every_field_is_in_one_list() -> None:
    for rules in (questions.COMPLETIONS, *questions.DIALECTS.values()):
        lists = (rules.honoured, rules.unheeded, set(rules.neutral))
        assert sum(map(len, lists)) == len(set().union(*lists))
