"""An environment that hangs, dies or raises ends its own episode with a reason; every other one goes on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest
import pytest_asyncio

from flexmarl.algorithms.seeds import episode_seed
from flexmarl.contracts.specification.environment import PettingZoo
from flexmarl.contracts.wire import EpisodeStatus, PolicyPin
from tests.support.ended import ended
from tests.support.misbehaving_host import DIES, DRAWS, HANGS, HANGS_AT_SET_UP, HANGS_DEAF, MOVES, RAISES, WELL
from workers.models.tokenizer import tokenizer_json
from workers.rollout.engine_client import TurnReply
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.environments.base import Outcome, Reply
from workers.rollout.episode import EpisodeOrder, play_episode
from workers.rollout.isolation import EnvironmentBroke, EnvironmentPool
from workers.rollout.speech import Seat
from workers.vocabulary import Codec

SPEC = PettingZoo(opponent="random", setup_timeout_s=300.0, step_timeout_s=300.0)
SHORT_S = 4.0
"""A deadline that only what really hangs misses, also on a slow machine."""
GONE_S = 60.0


pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[EnvironmentPool]:
    """One host for all tests: its start costs more than they do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.rollout.isolation.processes.HOST", "tests.support.misbehaving_host")
        pool = EnvironmentPool(SPEC)
        yield pool
        await pool.close()


@pytest.fixture
def pool(shared: EnvironmentPool) -> Iterator[EnvironmentPool]:
    yield shared
    shared.spec = SPEC


async def to_the_end(pool: EnvironmentPool, what: int, seed: int = 1) -> Outcome:
    live = await pool.begin(what, False, seed)
    try:
        while asks := live.asks():
            await live.act([Reply(ask.role, ask.allowed[0]) for ask in asks])
        return live.outcome()
    finally:
        live.leave()


def children(pool: EnvironmentPool) -> list[psutil.Process]:
    assert pool._host is not None
    return psutil.Process(pool._host.process.pid).children()


async def until_gone(processes: list[psutil.Process]) -> None:
    async with asyncio.timeout(GONE_S):
        while not all(map(ended, processes)):
            await asyncio.sleep(0.02)


async def test_whatever_befalls_one_episode_the_others_go_on(pool: EnvironmentPool) -> None:
    await to_the_end(pool, WELL)
    pool.spec = SPEC.model_copy(update={"setup_timeout_s": SHORT_S, "step_timeout_s": SHORT_S})
    hanging = [asyncio.create_task(to_the_end(pool, what)) for what in (HANGS_AT_SET_UP, HANGS, HANGS_DEAF)]
    broken = await asyncio.gather(*(to_the_end(pool, what) for what in (RAISES, DIES)), return_exceptions=True)
    assert [str(error) for error in broken] == ["step: RuntimeError: the board caught fire", "step: its process died"]
    outcomes = await asyncio.gather(*(to_the_end(pool, WELL) for _ in range(8)))
    assert [outcome.scores for outcome in outcomes] == [{"player_1": float(MOVES)}] * 8
    assert not any(task.done() for task in hanging), "the others ended while these still hung"
    reasons = [str(error) for error in await asyncio.gather(*hanging, return_exceptions=True)]
    assert reasons == ["boot: no answer within 4 s", *["step: no answer within 4 s"] * 2]
    kept = len(pool._resting)
    async with asyncio.timeout(GONE_S):
        while len(children(pool)) != kept:
            await asyncio.sleep(0.02)


async def test_processes_are_used_again_and_play_one_episode_at_a_time(pool: EnvironmentPool) -> None:
    first = await pool.begin(WELL, False, 1)
    second = await pool.begin(WELL, False, 1)
    one, other = (live.asks()[0].observation for live in (first, second))
    assert one != other
    first.leave()
    while pool._closing:
        await asyncio.sleep(0.02)
    there = len(children(pool))
    again = await pool.begin(WELL, False, 2)
    assert again.asks()[0].observation == one
    assert len(children(pool)) == there
    for live in (second, again):
        live.leave()


async def test_an_episode_draws_the_same_from_the_generators_of_its_process_whoever_plays_beside_it(
    pool: EnvironmentPool,
) -> None:
    async def seen(beside: bool) -> list[str]:
        live, told = await pool.begin(DRAWS, False, 5), []
        while asks := live.asks():
            told.append(asks[0].observation)
            if beside:
                await to_the_end(pool, DRAWS, seed=9)
            await live.act([Reply("player_1", "go")])
        live.leave()
        return told

    assert await seen(beside=False) == await seen(beside=True)


async def test_an_episode_that_is_cancelled_in_a_move_leaves_no_process(pool: EnvironmentPool) -> None:
    live = await pool.begin(HANGS, False, 1)
    process = psutil.Process(live.process.pid)
    move = asyncio.create_task(live.act([Reply(ask.role, ask.allowed[0]) for ask in live.asks()]))
    while live.whole:
        await asyncio.sleep(0.02)  # until it is asked
    move.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await move
    live.leave()
    await until_gone([process])
    assert process.pid not in [one.pid for one in pool._resting]
    assert await to_the_end(pool, WELL)


async def test_a_dead_host_ends_its_episodes_and_the_next_one_begins_with_another(pool: EnvironmentPool) -> None:
    live = await pool.begin(WELL, False, 1)
    processes, host = children(pool), psutil.Process(pool._host.process.pid)
    host.kill()
    await until_gone([host, *processes])
    with pytest.raises(EnvironmentBroke, match="its process died"):
        await live.act([Reply("player_1", "go")])
    live.leave()
    assert await to_the_end(pool, WELL)
    assert pool._host.process.pid != host.pid


async def test_a_worker_that_hangs_up_leaves_nothing(pool: EnvironmentPool) -> None:
    episodes = [await pool.begin(WELL, False, 1) for _ in range(3)]
    processes = [psutil.Process(pool._host.process.pid), *children(pool)]
    assert len(processes) >= 4
    await pool.close()
    await until_gone(processes)
    for live in episodes:
        live.leave()


async def test_a_package_that_is_missing_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.rollout.isolation.processes.HOST", "tests.support.bare_host")
    pool = EnvironmentPool(SPEC)
    with pytest.raises(EnvironmentBroke, match="ModuleNotFoundError: No module named 'no_such_game'"):
        await to_the_end(pool, WELL)
    await pool.close()


class Engines:
    """Answers every turn with the only move."""

    async def until_held(self, request: object, timeout_s: float) -> float:
        return 0.0

    async def turn(self, request: object, deadline: float) -> TurnReply:
        choice = CompletionChoice(index=0, token_ids=[4], logprobs=[0.0], segments=[1, 1], finish_reason="length")
        return TurnReply(choice, "engine", 1.0)


@pytest.mark.parametrize(
    ("what", "reason"),
    [(HANGS, "environment: step: no answer within 4 s"), (DIES, "environment: step: its process died")],
)
async def test_the_attempt_of_a_broken_environment_is_data(pool: EnvironmentPool, what: int, reason: str) -> None:
    await to_the_end(pool, WELL)
    pool.spec = SPEC.model_copy(update={"step_timeout_s": SHORT_S})
    words = ("<pad>", "<bos>", "<eos>", "pid", "go", *(str(one) for one in range(10)))
    seat = Seat("player", PolicyPin(version=1, digest="a" * 64), Anything(tokenizer_json(words)), 1, 1.0)
    order = EpisodeOrder(1, 0, 1, what, False, 3, 600.0, 600.0, None)
    began = time.monotonic()
    attempt = await play_episode(order, pool, {"player_1": seat}, Engines())
    assert (attempt.status, attempt.reason, attempt.broke) == (EpisodeStatus.FAILED, reason, True)
    assert attempt.outcome is None
    assert time.monotonic() - began < order.timeout_s
    assert episode_seed(3, 1, 0, 0) != episode_seed(3, 1, 0, 1), "the next try draws anew"


class Anything(Codec):
    def encode(self, text: str) -> list[int]:
        return [1, 3]
