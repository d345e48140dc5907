"""A turn that an engine does not finish goes on elsewhere with what it has: aligned, bounded, and once."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NoReturn

import pytest

from flexmarl.algorithms.routing import ROUTERS, EngineLoad, Router, RouteRequest
from flexmarl.contracts.specification.routers import ROUTER, RouterOptions
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.engines import EngineRoute
from tests.support.breaking_engine import BreakingEngine, logprob, token
from tests.support.forms import form
from workers.rollout import engine_client
from workers.rollout.engine_client import EngineClient
from workers.rollout.engines import version_segments
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.turns import (
    MAX_MOVES,
    SoFar,
    TooManyMovesError,
    TryElsewhereError,
    TurnRefusedError,
    TurnReply,
    TurnRequest,
    WaitingTurn,
)

pytestmark = pytest.mark.slow

TOKENS, SEED = 12, 7
PIN = PolicyPin(version=0, digest="0" * 64)
WHOLE = [token(SEED, p) for p in range(TOKENS)]
CHANCES = [logprob(SEED, p) for p in range(TOKENS)]


def asked(seed: int = SEED, **more: object) -> TurnRequest:
    return TurnRequest("solver", PIN, (1, 2), seed, TOKENS, 1.0, (), (), **more)


def known(*engines: BreakingEngine) -> Callable[[], Awaitable[list[EngineRoute]]]:
    async def routes() -> list[EngineRoute]:
        return [engine.route() for engine in engines]

    return routes


def client_of(*engines: BreakingEngine, **more: object) -> EngineClient:
    return EngineClient(known(*engines), ROUTERS.make(ROUTER.options("least_loaded")), **more)


async def answer(client: EngineClient, request: TurnRequest) -> TurnReply:
    try:
        return await client.turn(request, time.monotonic() + 60)
    finally:
        await client.close()


def assert_whole(reply: TurnReply, segments: list[int]) -> None:
    assert reply.choice.token_ids == WHOLE
    assert reply.choice.logprobs == CHANCES
    assert reply.choice.segments == segments


async def test_a_router_that_fails_ends_its_turns_and_says_why() -> None:
    class Broken(Router[RouterOptions]):
        def choose(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> NoReturn:
            raise KeyError("no such weight")

    async with BreakingEngine("a") as first, BreakingEngine("b") as second:
        client = EngineClient(known(first, second), Broken(ROUTER.options()))
        with pytest.raises(TurnRefusedError, match="router_failed: KeyError: 'no such weight'"):
            await answer(client, asked())


@pytest.mark.parametrize("how", ["hang_up", "abort"])
@pytest.mark.parametrize("position", range(TOKENS))
async def test_interrupted_at_every_token_it_is_the_uninterrupted_reply(position: int, how: str) -> None:
    async with BreakingEngine("a", 0, lambda *_: (position, how)) as first, BreakingEngine("b", 1) as second:
        client = client_of(first, second)
        reply = await answer(client, asked(follow="resume"))
    assert_whole(reply, [0, position, 1, TOKENS - position] if position else [1, TOKENS])
    moves = 0 if (position, how) == (0, "abort") else 1
    assert (reply.incarnation, reply.moves, len(second.requests)) == ("b", moves, 1)
    assert sum(client.counters.moved.values()) == moves
    (done,) = second.requests[0].done or [None]
    assert (done.token_ids, done.logprobs) == (WHOLE[:position], CHANCES[:position]) if done else position == 0


async def test_a_turn_that_only_stood_in_queues_has_not_moved_however_many_they_were() -> None:
    def breaks(number: int, begun: int) -> tuple[int, str]:
        return (0, "abort") if number < MAX_MOVES + 2 else (6, "abort") if not begun else (TOKENS, "")

    async with BreakingEngine("a", 0, breaks) as engine:
        client = client_of(engine)
        reply = await answer(client, asked(follow="resume"))
    assert_whole(reply, [0, TOKENS])
    assert (reply.moves, len(engine.requests)) == (1, MAX_MOVES + 3)


async def test_many_turns_of_a_request_move_each_with_its_own_tokens() -> None:
    async with BreakingEngine("a", 0, lambda *_: (5, "abort")) as first, BreakingEngine("b") as second:
        client = client_of(first, second)
        turns = [client.turn(asked(seed), time.monotonic() + 60) for seed in range(40)]
        replies = await asyncio.gather(*turns)
        await client.close()
    for seed, reply in enumerate(replies):
        assert reply.choice.token_ids == [token(seed, p) for p in range(TOKENS)]
        assert reply.choice.logprobs == [logprob(seed, p) for p in range(TOKENS)]
        assert reply.choice.segments == [0, TOKENS]
    assert {reply.moves for reply in replies} == {0, 1}, "half of them went to each"


@pytest.mark.parametrize(("name", "reason"), [("least_loaded", "least_loaded"), ("length_aware", "fewest_tokens")])
async def test_turns_that_are_ready_together_are_spread(name: str, reason: str) -> None:
    async with BreakingEngine("a") as one, BreakingEngine("b") as other, BreakingEngine("c") as third:
        client = EngineClient(known(one, other, third), ROUTERS.make(ROUTER.options(name)))
        await asyncio.gather(*(client.turn(asked(seed), time.monotonic() + 60) for seed in range(30)))
        await client.close()
        assert [len(e.requests[0].prompt) for e in (one, other, third)] == [10, 10, 10]
    assert sum(client.counters.routed.values()) == 30
    news = client.counters.news()
    assert news == {
        "routed": f"a {reason} 10, b {reason} 10, c {reason} 10",
        "latest": f"{reason} c of a 10, b 10, c 9",
    }, "the last choice with the loads that justified it"
    assert client.counters.news() == {}, "told once"


async def test_the_first_turn_of_new_weights_looks_where_they_are_instead_of_waiting() -> None:
    async with BreakingEngine("a") as engine:
        client = client_of(engine)
        await client.turn(asked(), time.monotonic() + 60)
        engine.version = 1
        newer = replace(asked(), pin=PolicyPin(version=1, digest="1" * 64))
        reply = await answer(client, newer)
    assert (reply.incarnation, len(engine.requests)) == ("a", 2)
    assert (client.counters.retries, client.counters.refused.total()) == (0, 0)


async def test_a_turn_goes_to_the_engine_that_was_given_its_group_and_anywhere_if_that_lacks_its_weights() -> None:
    async with BreakingEngine("a", lease=1) as first, BreakingEngine("b", lease=2) as second:
        client = client_of(first, second)
        turns = [client.turn(asked(seed, engine=2), time.monotonic() + 60) for seed in range(6)]
        assert {reply.incarnation for reply in await asyncio.gather(*turns)} == {"b"}
        second.version = 1
        await client._fleet.refresh()
        reply = await answer(client, asked(engine=2))
    assert_whole(reply, [0, TOKENS])
    assert reply.incarnation == "a"


@pytest.mark.parametrize("position", [0, 1, 5, TOKENS - 1])
async def test_a_reply_that_is_repacked_goes_on_where_it_was_sent_under_its_version(position: int) -> None:
    async with (
        BreakingEngine("a", 0, lambda *_: (position, "abort"), lease=1, to=3) as source,
        BreakingEngine("b", 0, lease=2) as emptier,
        BreakingEngine("c", 0, lease=3) as destination,
    ):
        client = client_of(source, emptier, destination)
        reply = await answer(client, asked(engine=1))
    assert_whole(reply, [0, TOKENS])
    assert (reply.incarnation, len(emptier.requests), len(destination.requests)) == ("c", 0, 1)
    assert reply.moves == 0, "nothing broke"


async def test_however_often_a_long_reply_is_repacked_it_is_not_given_up() -> None:
    def breaks(_: int, begun: int) -> tuple[int, str]:
        return (begun + 1, "abort") if begun < TOKENS - 1 else (TOKENS, "")

    async with BreakingEngine("a", 0, breaks, 1, to=2) as one, BreakingEngine("b", 0, breaks, 2, to=1) as other:
        reply = await answer(client_of(one, other), asked())
    assert_whole(reply, [0, TOKENS])
    assert len(one.requests) + len(other.requests) == TOKENS > MAX_MOVES + 1


async def test_a_turn_moves_five_times_and_not_once_more() -> None:
    async with BreakingEngine("a", 0, lambda _, begin: (begin + 1, "hang_up")) as engine:
        client = client_of(engine)
        with pytest.raises(TooManyMovesError, match="6 engines accepted it one after another"):
            await answer(client, asked())
    assert len(engine.requests) == MAX_MOVES + 1
    assert [len(r.done[0].token_ids) if r.done else 0 for r in engine.requests] == [0, 1, 2, 3, 4, 5]
    async with BreakingEngine("a", 0, lambda no, begin: (begin + 1, "hang_up" if no <= MAX_MOVES else "")) as engine:
        reply = await answer(client_of(engine), asked())
    assert_whole(reply, [0, TOKENS])
    assert reply.moves == MAX_MOVES


@pytest.mark.parametrize("case", range(form(short=8, full=25)))
async def test_however_engines_break_a_reply_is_whole_or_has_moved_too_often(
    case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(engine_client, "RETRY_LAST_S", 0.002)
    rng = random.Random(case)

    def breaks(_: int, begin: int) -> tuple[int, str]:
        return begin + rng.randrange(5), rng.choice(["hang_up", "abort", "gap", "", ""])

    async with (
        BreakingEngine("a", 0, breaks) as first,
        BreakingEngine("b", 1, breaks) as second,
        BreakingEngine("c", 2, breaks) as third,
    ):
        client = client_of(first, second, third)
        turns = [client.turn(asked(seed, follow="resume"), time.monotonic() + 60) for seed in range(12)]
        replies = await asyncio.gather(*turns, return_exceptions=True)
        await client.close()
    assert all(engine.in_flight == 0 and abs(engine.tokens) < 1e-6 for engine in client._fleet._engines.values())
    for seed, reply in enumerate(replies):
        if isinstance(reply, TooManyMovesError):
            continue
        assert isinstance(reply, TurnReply), reply
        assert reply.moves <= MAX_MOVES
        assert reply.choice.token_ids == [token(seed, p) for p in range(TOKENS)]
        assert reply.choice.logprobs == [logprob(seed, p) for p in range(TOKENS)]
        assert version_segments.count(reply.choice.segments) == TOKENS
    assert any(isinstance(reply, TurnReply) and reply.moves for reply in replies)


async def test_an_engine_that_takes_nothing_costs_no_move() -> None:
    gone = BreakingEngine("a")
    async with gone:
        pass
    async with BreakingEngine("b") as there:
        client = client_of(gone, there)
        reply = await answer(client, asked())
    assert reply.moves == 0
    assert client.counters.refused["engine_unreachable"] == 1


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "PROGRESS_S", 0.02)
    monkeypatch.setattr(engine_client, "SILENT_LOOKS", 3)


@pytest.mark.usefixtures("quick_looks")
async def test_a_silent_engine_is_left_and_what_it_says_later_changes_nothing() -> None:
    async with BreakingEngine("a", 0, lambda *_: (4, "silent")) as stands, BreakingEngine("b", 1) as second:
        client = client_of(stands, second)
        reply = await client.turn(asked(follow="resume"), time.monotonic() + 60)
        assert_whole(reply, [0, 4, 1, TOKENS - 4])
        assert (reply.moves, client.counters.moved["silent"]) == (1, 1)
        stands.release.set()
        before = len(stands.requests)
        again = await client.turn(asked(follow="resume"), time.monotonic() + 60)
        assert (again.incarnation, len(stands.requests)) == ("b", before), "it is left alone for a while"
        await client.close()


@pytest.mark.usefixtures("quick_looks")
async def test_a_silent_engine_that_is_the_only_one_is_waited_for() -> None:
    async with BreakingEngine("a", 0, lambda *_: (4, "silent")) as engine:
        client = client_of(engine)
        turn = asyncio.create_task(client.turn(asked(), time.monotonic() + 60))
        await asyncio.sleep(0.5)
        engine.release.set()
        reply = await turn
        await client.close()
    assert_whole(reply, [0, TOKENS])
    assert reply.moves == 0


@pytest.mark.usefixtures("quick_looks")
async def test_a_request_that_nobody_waits_for_is_ended() -> None:
    async with BreakingEngine("a", 0, lambda *_: (4, "silent")) as engine:
        client = client_of(engine)
        turn = asyncio.create_task(client.turn(asked(), time.monotonic() + 60))
        while not engine.requests:
            await asyncio.sleep(0.005)
        turn.cancel()
        async with asyncio.timeout(90):
            while not engine.hung_up:
                await asyncio.sleep(0.005)
        await client.close()
    assert not client._open


@pytest.mark.usefixtures("quick_looks")
async def test_an_engine_is_told_which_replies_of_a_request_nobody_waits_for() -> None:
    async with BreakingEngine("a", 0, lambda *_: (4, "silent")) as engine:
        client = client_of(engine)
        turns = [asyncio.create_task(client.turn(asked(seed), time.monotonic() + 60)) for seed in (1, 2, SEED)]
        while not engine.requests:
            await asyncio.sleep(0.005)
        turns[1].cancel()
        async with asyncio.timeout(90):
            while not engine.aborted:
                await asyncio.sleep(0.005)
        engine.release.set()
        assert_whole(await turns[2], [0, TOKENS])
        await client.close()
    (request,) = engine.requests
    assert len(set(request.request_ids)) == 3
    assert engine.aborted == [request.request_ids[1]], "once, and no other"


async def test_a_reply_that_was_told_whole_needs_nobody_to_end_it() -> None:
    async with BreakingEngine("a", 0, lambda *_: (TOKENS, "hang_up")) as engine:
        reply = await answer(client_of(engine), asked())
    assert_whole(reply, [0, TOKENS])
    assert (reply.choice.finish_reason, reply.moves, reply.incarnation) == ("length", 0, "a")
    assert len(engine.requests) == 1


@pytest.mark.parametrize(("more", "resumes"), [({}, False), ({"follow": "restart_turn"}, True)])
async def test_a_reply_that_is_made_from_its_first_token_carries_nothing(more: dict, resumes: bool) -> None:
    async with BreakingEngine("a", 0, lambda *_: (5, "hang_up")) as first, BreakingEngine("b") as second:
        reply = await answer(client_of(first, second, resumes=resumes), asked(**more))
    assert_whole(reply, [0, TOKENS])
    assert (reply.moves, second.requests[0].done) == (1, [])


async def test_tokens_behind_a_hole_are_not_taken_in() -> None:
    async with BreakingEngine("a", 0, lambda *_: (5, "gap")) as first, BreakingEngine("b") as second:
        client = client_of(first, second)
        assert_whole(await answer(client, asked()), [0, TOKENS])
    assert client.counters.moved["not_aligned"] == 1


async def test_a_try_that_was_given_back_hears_nothing_more() -> None:
    one = WaitingTurn(asked(), asyncio.get_running_loop().create_future(), 0.0, SoFar(), taken=True)
    one.settle(CompletionChoice(0, WHOLE[:3], CHANCES[:3], "", [0, 3]), "a", 1.0)
    one.give_back("silent")
    following = one.again(True)
    one.settle(CompletionChoice(0, [9] * 9, [0.0] * 9, "stop", [0, 9], 3), "a", 2.0)
    one.so_far.token_ids.append(99)
    assert (following.moves, following.future.done()) == (1, False)
    assert following.so_far == SoFar(WHOLE[:3], CHANCES[:3], [0, 3])
    with pytest.raises(TryElsewhereError):
        await one.future
