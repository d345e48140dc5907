"""Serving keys: a program with OpenAI's own client and a key of a project asks its agents, within quotas."""

from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from django.core.handlers.wsgi import WSGIHandler

from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.playground import engines, keys, quotas
from flexmarl.controlplane.playground.models import ServingCall, ServingDay, ServingKey
from tests.support import playground_stage
from tests.support.playground_stage import Stage, refused
from tests.support.store_story import digest

stage, client_for = playground_stage.stage, playground_stage.client_for
_one_connection = playground_stage._one_connection
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # under WSGI, in one piece
]


@pytest.fixture
def boss(person) -> Any:
    return person(ProjectRole.ADMIN, "boss")


@pytest.fixture
def keyed(stage, boss) -> Callable[..., Stage]:
    """Return a function that lets a key ask instead of the editor."""

    def make(requests_per_minute: int = 60, tokens_per_day: int = 1000, models: tuple[str, ...] = ()) -> Stage:
        _, text = keys.create(actor_of_user(boss), "default", "app", requests_per_minute, tokens_per_day, models)
        stage.client = client_with(text)
        return stage

    return make


def client_with(text: str) -> openai.OpenAI:
    transport = httpx2.WSGITransport(app=WSGIHandler())
    http = httpx2.Client(transport=transport)
    return openai.OpenAI(base_url="http://testserver/v1", api_key=text, max_retries=0, http_client=http)


def used() -> tuple[int, int, int, int]:
    """Return what was used today: requests, refused ones, tokens of prompts and of replies."""
    day = ServingDay.objects.get()
    return day.requests, day.refused, day.prompt_tokens, day.completion_tokens


# what is answered, and what it costs


def test_a_key_asks_and_is_charged_what_the_engine_read_and_made(keyed) -> None:
    stage = keyed()
    answer = stage.chat(max_tokens=3, temperature=0, seed=7)
    assert answer.choices[0].message.content == "round square big"
    assert answer.usage.to_dict() == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert used() == (1, 0, 2, 3)
    assert not ServingCall.objects.exists()


def test_a_stream_is_charged_like_a_whole_answer(keyed) -> None:
    stage = keyed()
    stage.engine.parts = True
    chunks = list(stage.chat(max_tokens=3, n=2, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens == 6
    assert used() == (1, 0, 2, 6)
    assert not ServingCall.objects.exists()


def test_the_token_that_ends_a_reply_counts(keyed) -> None:
    stage = keyed()
    answer = stage.chat(max_tokens=6, stop=["big"])
    assert answer.choices[0].message.content == "round square"
    assert answer.usage.completion_tokens == 3, "round, square, and the end"
    assert used()[3] == 3


def test_what_the_engine_refused_or_lost_costs_no_tokens(keyed) -> None:
    stage = keyed()
    stage.engine.refuse.append(
        (422, {"code": "bad_request", "detail": "prompt and max_tokens: 900 positions exceed 64"})
    )
    assert refused(stage.chat)["code"] == "context_length_exceeded"
    stage.engine.refuse.append((500, {"code": "broken", "detail": "it broke"}))
    assert refused(stage.chat, openai.InternalServerError)["code"] == "engine_failed"
    stage.live(None)
    stage.node((202, {"since_s": 2.0}))
    refused(lambda: stage.chat(extra_headers={"Prefer": "wait=0"}), openai.InternalServerError)
    assert used() == (3, 0, 0, 0)
    assert not ServingCall.objects.exists()


def test_a_call_that_finds_no_place_gives_its_reservation_back(keyed, monkeypatch) -> None:
    stage = keyed()
    places = engines.QuestionSlots(1, "talks")
    monkeypatch.setattr(engines, "LIVE_PLACES", places)
    places.take()
    assert refused(stage.chat, openai.RateLimitError)["code"] == "rate_limited"
    assert not ServingCall.objects.exists()


# quotas


def test_requests_of_a_minute_end_with_the_moment_to_ask_again(keyed, monkeypatch) -> None:
    monkeypatch.setattr(quotas, "MINUTE_S", 10**12)  # one minute for the whole test
    stage = keyed(requests_per_minute=2)
    answer = stage.client.chat.completions.with_raw_response.create(
        model=stage.name, messages=[{"role": "user", "content": "red"}], max_tokens=1
    )
    assert answer.headers["x-ratelimit-remaining-requests"] == "1"
    stage.chat(max_tokens=1)
    with pytest.raises(openai.RateLimitError) as caught:
        stage.chat(max_tokens=1)
    assert (caught.value.code, caught.value.param) == ("quota_exceeded", "requests_per_minute")
    assert int(caught.value.response.headers["Retry-After"]) >= 1
    assert used() == (2, 1, 3, 2)
    ServingDay.objects.update(minute=0)
    monkeypatch.setattr(quotas, "MINUTE_S", 10**9)
    stage.chat(max_tokens=1)
    assert used()[0] == 3, "another minute"


def test_tokens_of_a_day_are_never_exceeded(keyed) -> None:
    stage = keyed(tokens_per_day=12)
    stage.chat(max_tokens=4)  # 2 + 4
    with pytest.raises(openai.RateLimitError) as caught:
        stage.chat(max_tokens=5)  # 2 + 5 might be one too many
    assert (caught.value.code, caught.value.param) == ("quota_exceeded", "tokens_per_day")
    assert "6 are used and 0 are reserved" in caught.value.message
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert 0 < int(caught.value.response.headers["Retry-After"]) <= 86_400
    stage.chat(max_tokens=4)
    assert used() == (2, 1, 4, 8)


def test_what_a_lost_process_reserved_is_let_go(keyed, monkeypatch) -> None:
    stage = keyed(tokens_per_day=12)
    stage.chat(max_tokens=1)
    ServingCall.objects.create(of=ServingDay.objects.get(), reserved=9, opened_at="2026-01-01T00:00:00Z")
    stage.chat(max_tokens=4)
    assert not ServingCall.objects.exists()


# which models


def test_a_key_is_limited_to_models(keyed) -> None:
    stage = keyed()
    key = stage.run.key
    assert {model.id for model in stage.client.models.list()} == {f"{key}/{role}" for role in stage.run.spec["agents"]}
    stage = keyed(models=(f"{key}/speaker",))
    assert [model.id for model in stage.client.models.list()] == [f"{key}/speaker"]
    assert stage.chat(max_tokens=1).model == f"{key}/speaker@1"
    stage.node((200, {"endpoint": stage.engine.url, "token": "n", "digest": digest(0)}))
    assert stage.chat(model=f"{key}/speaker@0", max_tokens=1).model == f"{key}/speaker@0"
    body = refused(lambda: stage.chat(model=f"{key}/listener"), openai.NotFoundError)
    assert (body["code"], f"allowed: {key}/speaker" in body["message"]) == ("model_not_found", True)
    stage = keyed(models=(f"{key}/speaker@0",))
    assert [model.id for model in stage.client.models.list()] == [f"{key}/speaker@0"]
    refused(stage.chat, openai.NotFoundError)


def test_an_unknown_model_is_refused_with_some_known_ones(keyed) -> None:
    stage = keyed()
    body = refused(lambda: stage.chat(model="nobody-0000/speaker"), openai.NotFoundError)
    assert body["code"] == "model_not_found"
    assert stage.name in body["message"]


def test_a_key_asks_only_its_own_project(stage, person) -> None:
    boss = person(ProjectRole.ADMIN, "zoe", "elsewhere")
    _, text = keys.create(actor_of_user(boss), "elsewhere", "app", 60, 1000)
    client = client_with(text)
    assert list(client.models.list()) == []
    asks = lambda: client.completions.create(model=stage.name, prompt="red")  # noqa: E731
    assert stage.name not in refused(asks, openai.NotFoundError)["message"].partition("Known models")[2]


# which keys


def test_wrong_and_revoked_keys_are_refused(stage, boss) -> None:
    key, text = keys.create(actor_of_user(boss), "default", "app", 60, 1000)
    for wrong in ("fmk_no", text[:-1] + ("a" if text[-1] != "a" else "b"), text.replace("fmk_", "fmx_")):
        with pytest.raises(openai.AuthenticationError) as caught:
            client_with(wrong).models.list()
        assert caught.value.type == "authentication_error"
    client = client_with(text)
    assert list(client.models.list())
    keys.revoke(actor_of_user(boss), "default", key.id)
    with pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_a_key_opens_nothing_else(stage, boss, client) -> None:
    _, text = keys.create(actor_of_user(boss), "default", "app", 60, 1000)
    for path in ("/api/v1/runs", "/api/v1/me", "/metrics", f"/api/v1/runs/{stage.run.key}"):
        assert client.get(path, headers={"Authorization": f"Bearer {text}"}).status_code == 401, path


def test_the_secret_is_nowhere_but_in_the_first_answer(boss, client_of) -> None:
    api = client_of(boss)
    body = {"name": "app", "requests_per_minute": 5, "tokens_per_day": 500}
    made = api.post("/api/v1/projects/default/serving-keys", body, HTTP_IDEMPOTENCY_KEY="k-1")
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert secret.startswith(made.json()["key"] + ".")
    again = api.post("/api/v1/projects/default/serving-keys", body, HTTP_IDEMPOTENCY_KEY="k-1")
    assert again.json()["secret"] is None
    [row] = api.get("/api/v1/projects/default/serving-keys").json()["results"]
    assert "secret" not in row
    assert secret.partition(".")[2] not in str(ServingKey.objects.values())
