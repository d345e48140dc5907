"""Turns that stand still: taken back from a real engine with the tokens they have, then gone on with."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from aiohttp import web

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.specification.team import FactoryModel
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.engines import EngineRoute
from workers.child import IntervalLog
from workers.models import architecture_of, build_model
from workers.rollout.asking import Asking, answered
from workers.rollout.engine_client import EngineClient
from workers.rollout.engines.server import EngineServer
from workers.rollout.engines.tokenizers import Tokenizers
from workers.rollout.engines.torch_engine import TorchEngine
from workers.rollout.environments.base import Ask
from workers.rollout.pausing import Hold
from workers.rollout.slots import slots
from workers.rollout.speech import Seat
from workers.rollout.turns import TurnReply, TurnRequest

WORDS = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(37)))
SHAPE = architecture_of(FactoryModel())
STATES = [build_model(FactoryModel(), WORDS, seed).state_dict() for seed in (1, 2)]
TOKENS = 96
PIN = PolicyPin(version=0, digest="0" * 64)
ASKED = [
    TurnRequest("p", PIN, (1, 4, 5), 11, TOKENS, 1.0, (), (), follow="resume"),
    TurnRequest("p", PIN, (1, 9, 2, 30, 7), 12, TOKENS, 0.6, (), (), follow="resume"),
    TurnRequest("p", PIN, (3,), 13, TOKENS, 0.0, (), (), follow="resume"),
]


@dataclass
class Served:
    """A torch engine behind its HTTP face in this process, and a client of it."""

    engine: TorchEngine
    client: EngineClient

    async def ask(self, hold: Hold, deadline_s: float = 300.0) -> list[TurnReply]:
        turns = [self.client.turn(replace(one, hold=hold), time.monotonic() + deadline_s) for one in ASKED]
        return await asyncio.gather(*turns)

    async def until(self, made: int) -> None:
        """Wait until the engine has made so many more tokens."""
        until = self.engine.generated_tokens + made
        async with asyncio.timeout(120):
            while self.engine.generated_tokens < until:
                await asyncio.sleep(0)

    async def idle(self) -> None:
        async with asyncio.timeout(120):
            while self.engine.busy or self.client._open:
                await asyncio.sleep(0.001)

    def load(self, version: int) -> None:
        self.engine.load("p", version, f"{version}" * 64, self.engine.prepare(STATES[version], SHAPE))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    torch.set_num_threads(1)
    engine = TorchEngine("cpu", 8)
    server = EngineServer(engine, None, "life", IntervalLog(), Tokenizers({}))
    app = web.Application()
    app.add_routes(server.routes())
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def routes() -> list[EngineRoute]:
        held = engine.holds().get("p")
        pins = {"p": PolicyPin(version=held.version, digest=held.digest)} if held else {}
        return [EngineRoute(1, url, "token", "life", pins)]

    work = asyncio.create_task(server.generate())
    found = Served(engine, EngineClient(routes, ROUTERS.make(ROUTER.options("least_loaded"))))
    found.load(0)
    yield found
    await found.client.close()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await runner.cleanup()


async def test_a_reply_that_was_held_at_an_engine_is_the_reply_of_one_that_never_was(served: Served) -> None:
    whole = await served.ask(Hold())
    for made in (1, 150):
        hold = Hold()
        asked = asyncio.create_task(served.ask(hold))
        await served.until(made)
        hold.set(True)
        await served.idle()
        assert not asked.done()
        assert sum(one.latest.so_far.token_ids != [] for one in served.client.counters.open._turns.values()) == 3
        before = served.engine.generated_tokens
        await asyncio.sleep(0.02)
        assert served.engine.generated_tokens == before, "nothing of them plays on"
        assert served.client.counters.demand.now() == {}, "nobody asks for anything"
        hold.set(False)
        for reply, expected in zip(await asked, whole, strict=True):
            assert reply.choice.token_ids == expected.choice.token_ids
            assert np.abs(np.array(reply.choice.logprobs) - expected.choice.logprobs).max() <= 1e-5
            assert (reply.choice.segments, reply.moves) == ([0, TOKENS], 0)
    assert served.client.counters.moved.total() == 0


async def test_what_was_held_goes_on_under_the_weights_that_came_meanwhile(served: Served) -> None:
    hold = Hold()
    asked = asyncio.create_task(served.ask(hold))
    await served.until(60)
    hold.set(True)
    await served.idle()
    served.load(1)
    hold.set(False)
    for reply in await asked:
        version, first, newer, rest = reply.choice.segments
        assert (version, newer, first + rest) == (0, 1, TOKENS)
        assert first >= 1
        assert rest >= 1


async def test_who_stands_still_asks_nothing_and_its_deadline_waits_with_it(served: Served) -> None:
    hold = Hold(held=True)
    asked = asyncio.create_task(served.ask(hold, deadline_s=0.05))
    await asyncio.sleep(0.1)
    assert not served.engine.busy
    assert hold._since is not None
    hold._since -= 300.0  # as if it had stood for so long
    hold.set(False)
    assert all(len(reply.choice.token_ids) == TOKENS for reply in await asked)
    assert hold.stood_s > 300.0


async def test_what_an_episode_stood_still_is_none_of_its_time(served: Served) -> None:
    hold = Hold(held=True)
    seats = {"r": Seat("p", PIN, None, TOKENS, 1.0, hold=hold)}
    asking = Asking(served.client, None, slots(None))
    ask, request = Ask("r", "", TOKENS), replace(ASKED[0], hold=hold)
    asked = asyncio.create_task(answered(asking, [ask], [request], seats, time.monotonic() + 300.0, 1.0))
    await asyncio.sleep(0.02)
    assert hold._since is not None
    hold._since -= 700.0
    hold.set(False)
    [reply], waited_s = await asked
    assert len(reply.choice.token_ids) == TOKENS
    assert waited_s >= 700.0
