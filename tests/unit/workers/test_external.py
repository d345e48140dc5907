"""Agents with a model of somebody else: allowed hosts, secrets and failures by name, replies the environment knows."""

import json
import time

import pytest
from pydantic import ValidationError

from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.team import ExternalModel
from flexmarl.contracts.wire import EpisodeStatus, PolicyPin
from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.messages import Message
from tests.support.chat_endpoint import ChatEndpoint, allowed_words
from workers.external_access import ExternalAccess, ExternalError, ExternalFailure
from workers.models import tokenizer_json
from workers.rollout import external
from workers.rollout.environments.base import Ask
from workers.rollout.environments.registry import family_of
from workers.rollout.episode import EpisodeOrder, play_episode
from workers.rollout.external import ExternalClient, usable_ids
from workers.rollout.speech import Seat
from workers.rollout.turns import TurnRequest
from workers.vocabulary import ByteCodec, Codec, byte_tokenizer, renderer_of

KEY = "sk-very-secret"


def spec_of(agent, **more):
    fields = {"agents": {"guesser": {}, "hinter": agent}, "environment": {"type": "hot_cold"}}
    return ExperimentSpec.model_validate(fields | more)


SPEC = spec_of({"external": {"url": "https://api.example.org/v1", "model": "big"}})
FAMILY = family_of(SPEC.environment)
CODEC = Codec(tokenizer_json(FAMILY.vocabulary()))
WORDS = [word for word in FAMILY.vocabulary() if not word.startswith("<")]
ASK = Ask("hinter", " ".join(WORDS[:3]), max_tokens=2, allowed=tuple(WORDS[:4]))


def request(**changes):
    pin = PolicyPin(version=0, digest="")
    return TurnRequest("hinter", pin, (), 2**40 + 5, 2, 0.7, (), (), **changes)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(external, "AGAIN_FIRST_S", 0.01)


async def ask(endpoint, access=None, secret="", limit_s=5.0, timeout_s=5.0):
    client = ExternalClient(access or ExternalAccess(frozenset({endpoint.host}), {"KEY": KEY}))
    model = ExternalModel(url=endpoint.url, model="big", secret=secret, timeout_s=timeout_s)
    try:
        told = (Message("system", "Play."),)
        return await client.turn(model, ASK, request(conversation=told), CODEC, time.monotonic() + limit_s)
    finally:
        await client.close()


async def failure(endpoint, **options):
    with pytest.raises(ExternalError) as caught:
        await ask(endpoint, **options)
    assert KEY not in str(caught.value)
    return caught.value.code


async def test_a_turn_is_asked_in_the_open_dialect_and_recorded_in_the_environments_words():
    async with ChatEndpoint(
        lambda asked: f"Sure: {WORDS[1]} nonsense {WORDS[9]} {WORDS[2]} {WORDS[3]}", KEY
    ) as endpoint:
        reply = await ask(endpoint, secret="KEY")
    assert CODEC.decode(reply.choice.token_ids).split() == [WORDS[1], WORDS[2]]
    assert len(reply.choice.logprobs) == 2
    assert reply.choice.segments == [0, 2]
    assert reply.incarnation == "external:big"
    [asked] = endpoint.requests
    assert asked["model"] == "big"
    assert asked["messages"][1] == {"role": "user", "content": ASK.observation}
    assert asked["messages"][0]["content"].startswith("Play. Reply with at most 2 words")
    assert (asked["temperature"], asked["seed"], asked["max_tokens"]) == (0.7, 5, 8)


async def test_what_may_pass_is_asked_again():
    async with ChatEndpoint(lambda asked: WORDS[0]) as endpoint:
        endpoint.script = [(429, "slow down"), (503, "busy"), (500, "oops")]
        await ask(endpoint)
        assert len(endpoint.requests) == 4


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((401, "you sent {sent}"), ExternalFailure.REFUSED),
        ((302, ""), ExternalFailure.REFUSED),
        ((200, "no json, you sent {sent}"), ExternalFailure.BAD_REPLY),
        ((200, json.dumps({"choices": []})), ExternalFailure.BAD_REPLY),
        ((200, json.dumps({"choices": [{"message": {"content": None}}]})), ExternalFailure.NO_USABLE_WORD),
        ((200, json.dumps({"choices": [{"message": {"content": "xyzzy"}}]})), ExternalFailure.NO_USABLE_WORD),
    ],
)
async def test_what_cannot_pass_fails_at_once_with_its_name_and_without_the_secret(answer, code):
    async with ChatEndpoint(lambda asked: WORDS[0], KEY) as endpoint:
        endpoint.script = [answer]
        assert await failure(endpoint, secret="KEY") is code
        assert len(endpoint.requests) == 1


async def test_a_host_that_is_not_allowed_is_sent_nothing():
    async with ChatEndpoint(lambda asked: WORDS[0]) as endpoint:
        allowed = ExternalAccess(frozenset({"api.example.org"}), {"KEY": KEY})
        assert await failure(endpoint, access=allowed, secret="KEY") is ExternalFailure.HOST_NOT_ALLOWED
        assert endpoint.requests == []


async def test_a_secret_that_is_not_there_is_named():
    async with ChatEndpoint(lambda asked: WORDS[0]) as endpoint:
        with pytest.raises(ExternalError, match="secret_missing: FLEXMARL_EXTERNAL_SECRET_OTHER is not set"):
            await ask(endpoint, secret="OTHER")
        assert endpoint.requests == []


async def test_a_turn_ends_at_its_deadline_whatever_the_endpoint_does():
    async with ChatEndpoint(lambda asked: WORDS[0]) as endpoint:
        endpoint.script = [(500, "oops")] * 1000
        began = time.monotonic()
        assert await failure(endpoint, limit_s=0.3) is ExternalFailure.TIMEOUT
        assert time.monotonic() - began < 30.0
    assert await failure(endpoint, limit_s=0.3) is ExternalFailure.TIMEOUT, "nobody listens there any more"


async def test_a_conversation_is_sent_as_it_stands_and_its_answer_recorded_whole():
    said = (Message("system", "You add."), Message("user", "2+3?"))
    asked_in_messages = Ask("hinter", "", max_tokens=9, messages=said[1:])
    text = " ".join(WORDS[:2])
    async with ChatEndpoint(lambda asked: text) as endpoint:
        model = ExternalModel(url=endpoint.url, model="big")
        client = ExternalClient(ExternalAccess(frozenset({endpoint.host}), {}))
        turn = request(conversation=said)
        reply = await client.turn(model, asked_in_messages, turn, CODEC, time.monotonic() + 30)
        await client.close()
    assert CODEC.decode(reply.choice.token_ids) == text
    [asked] = endpoint.requests
    assert asked["messages"] == [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "2+3?"},
    ]
    assert asked["max_tokens"] == 2


def test_a_word_that_ends_the_reply_is_its_last():
    stopped = Ask("hinter", WORDS[0], max_tokens=5, allowed=(WORDS[0],), stop=(WORDS[4],))
    ids = usable_ids(f"{WORDS[0]} {WORDS[4]} {WORDS[0]}", stopped, CODEC, 5)
    assert CODEC.decode(ids).split() == [WORDS[0], WORDS[4]]


class NoEngines:
    async def until_held(self, request, at_most_s):
        raise AssertionError("an external seat waits for no weights")

    async def turn(self, request, deadline):
        raise AssertionError("an external seat asks no engine")


@pytest.mark.parametrize("reachable", [True, False])
async def test_an_episode_of_external_seats_ends_as_data(reachable):
    async with ChatEndpoint(lambda asked: (allowed_words(asked) or WORDS)[0]) as endpoint:
        model = ExternalModel(url=endpoint.url, model="big")
        seat = Seat("other", PolicyPin(version=0, digest=""), CODEC, 4, 0.5, external=model)
        order = EpisodeOrder(
            draw=0, member=0, attempt=1, task_seed=3, held_out=False, sampling_seed=7, timeout_s=20.0,
            weights_timeout_s=1.0, latency=None,
        )  # fmt: skip
        client = ExternalClient(ExternalAccess(frozenset({endpoint.host} if reachable else ())))
        attempt = await play_episode(order, FAMILY, dict.fromkeys(("guesser", "hinter"), seat), NoEngines(), client)
        await client.close()
    if reachable:
        assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
        assert attempt.turns
    else:
        assert attempt.status is EpisodeStatus.FAILED
        assert attempt.reason.startswith("external: host_not_allowed")


def test_an_external_agent_is_frozen_and_has_no_policy_of_the_run():
    assert broken_rules(SPEC) == []
    assert not SPEC.agents["hinter"].trainable
    assert list(SPEC.policies) == ["guesser"]
    assert SPEC.trainable_policies() == ("guesser",)


@pytest.mark.parametrize(
    ("agent", "more", "pointer", "code"),
    [
        ({"trainable": True}, {}, "/agents/hinter/trainable", "external_is_frozen"),
        ({"policy": "guesser"}, {}, "/agents/hinter/policy", "external_has_no_policy"),
        ({}, {"policies": {"hinter": {}}}, "/policies/hinter", "external_has_no_policy"),
        ({}, {"mechanisms": {"ordered": True}}, "/mechanisms/ordered", "not_with_external"),
    ],
)
def test_what_an_external_agent_cannot_be_is_refused(agent, more, pointer, code):
    external_model = {"url": "https://api.example.org/v1", "model": "big"}
    problems = broken_rules(spec_of({"external": external_model, **agent}, **more))
    assert (pointer, code) in [(problem.pointer, problem.code) for problem in problems]


@pytest.mark.parametrize(
    "change",
    [
        {"url": "ftp://api.example.org"},
        {"url": "https://user:password@api.example.org/v1"},
        {"secret": "sk-very-secret"},
        {"key": "sk-very-secret"},
    ],
)
def test_a_value_in_the_place_of_a_name_is_refused(change):
    with pytest.raises(ValidationError):
        ExternalModel.model_validate({"url": "https://api.example.org/v1", "model": "big"} | change)


def test_bytes_stand_in_for_tokens_where_no_policy_has_a_tokenizer() -> None:
    codec, said = ByteCodec(), "é 漢字\n\x00 <|end|>🙂"
    ids = codec.ids_of_text(said)
    assert (codec.decode(ids), len(ids), codec.size) == (said, len(said.encode()), 256)
    assert codec.room(32) >= 32 * max(len(word.encode()) for word in ("answer", "漢字", "🙂"))
    renderer = renderer_of(byte_tokenizer(), ChatFormat(plain=True).dump())
    assert renderer is not None
