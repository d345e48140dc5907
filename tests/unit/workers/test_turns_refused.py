"""What no engine can answer ends its turn at once with the engine's words, and nobody else's."""

import asyncio
import time

import msgspec
import pytest
from aiohttp import web

from flexmarl.contracts.wire import EpisodeStatus, PolicyPin
from tests.support.breaking_engine import BreakingEngine, token
from tests.unit.workers.test_external import CODEC, FAMILY
from tests.unit.workers.test_turn_moves import TOKENS, asked, client_of
from workers.rollout.engines.wire import CompletionChoice, CompletionRequest, CompletionResponse, Load, NotHeld
from workers.rollout.episode import EpisodeOrder, play_episode
from workers.rollout.speech import Seat
from workers.rollout.turns import MAX_MOVES, TooManyMovesError, TurnRefusedError, TurnReply

WRONG = 3
"""Seed of the request that an engine refuses."""


class RefusingEngine(BreakingEngine):
    """Refuses what comes with a certain seed and names it; answers the rest."""

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        sent = msgspec.json.decode(await request.read(), type=CompletionRequest)
        wrong = [name for name, seed in zip(sent.request_ids, sent.seeds, strict=True) if seed == WRONG]
        if not wrong:
            return await super()._completions(request)
        self.requests.append(sent)
        body = NotHeld("context_overflow", "prompt and max_tokens: 4099 positions exceed the model's 4096", {}, wrong)
        return web.Response(status=422, body=msgspec.json.encode(body))


class SpoiltEngine(BreakingEngine):
    """Makes two tokens; the third has no number, which it says or passes on."""

    says = True

    async def _reply(
        self, request: web.Request, response: web.StreamResponse, sent: CompletionRequest, index: int
    ) -> None:
        seed, made = sent.seeds[index], 2 if self.says else 3
        chances = [-0.5, -0.5, float("nan")][:made]
        ids = [token(seed, place) for place in range(made)]
        choice = CompletionChoice(index, ids, chances, "nonfinite" if self.says else "length", [0, made])
        reply = CompletionResponse(sent.model, [choice], Load(0, 0), self.name)
        await response.write(b"data: " + msgspec.json.encode(reply) + b"\n\n")


async def test_the_wrong_turn_of_a_request_ends_at_once_and_those_beside_it_are_answered() -> None:
    async with RefusingEngine("a") as engine:
        client = client_of(engine)
        turns = [client.turn(asked(seed), time.monotonic() + 600) for seed in range(8)]
        answers = await asyncio.gather(*turns, return_exceptions=True)
        await client.close()
    refused = answers.pop(WRONG)
    assert isinstance(refused, TurnRefusedError)
    assert refused.code == "context_overflow"
    assert str(refused).startswith("context_overflow: solver v0: prompt and max_tokens: 4099 positions")
    assert all(isinstance(answer, TurnReply) and answer.moves == 0 for answer in answers)
    assert [len(sent.prompt) for sent in engine.requests] == [8, 7]
    assert client.counters.refused["refused_beside"] == 7


async def test_a_reply_whose_numbers_are_none_is_refused_and_asked_of_nobody_else() -> None:
    async with SpoiltEngine("a") as engine:
        client = client_of(engine)
        with pytest.raises(TurnRefusedError, match="token 2 of a reply of solver v0 is not a number") as refused:
            await client.turn(asked(), time.monotonic() + 600)
        await client.close()
    assert refused.value.code == "nonfinite_logprobs"
    assert len(engine.requests) == 1


async def test_numbers_that_are_none_never_leave_the_client_whatever_the_engine_says() -> None:
    async with SpoiltEngine("a") as engine:
        engine.says = False
        client = client_of(engine)
        with pytest.raises(TooManyMovesError, match="the last error: malformed_answer"):
            await client.turn(asked(), time.monotonic() + 600)
        await client.close()
    assert len(engine.requests) == MAX_MOVES + 1


async def test_memory_that_ran_out_hands_a_reply_on_under_its_own_name() -> None:
    async with BreakingEngine("a", 0, lambda *_: (4, "out_of_memory")) as first, BreakingEngine("b") as second:
        client = client_of(first, second)
        reply = await client.turn(asked(), time.monotonic() + 600)
        await client.close()
    assert (len(reply.choice.token_ids), reply.moves) == (TOKENS, 1)
    assert client.counters.moved == {"out_of_memory": 1}


class Refusing:
    """Stands in for the client: every turn is refused."""

    async def turn(self, *_: object) -> TurnReply:
        raise TurnRefusedError("context_overflow", "solver v0: too long")

    async def until_held(self, *_: object) -> float:
        return 0.0


async def test_the_attempt_of_a_refused_turn_is_data_and_the_next_one_draws_anew() -> None:
    seat = Seat("other", PolicyPin(version=0, digest="d" * 64), CODEC, 4, 0.5)
    order = EpisodeOrder(0, 0, 1, 3, False, 7, 600.0, 600.0, None)
    attempt = await play_episode(order, FAMILY, dict.fromkeys(("guesser", "hinter"), seat), Refusing())
    reason = "engine: context_overflow: solver v0: too long"
    assert (attempt.status, attempt.reason, attempt.broke) == (EpisodeStatus.FAILED, reason, True)
