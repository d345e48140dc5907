"""The platform's turns against raw requests to the same engine: tokens per second, and processor time per turn.

Raw is the plainest client that keeps as many requests in flight as there are episodes: each asks for one reply of the
same length to a prompt of the same length, over the same HTTP, and asks again when it has it; nothing is kept. The
engine has a core of its own, everything else (player or raw client, PostgreSQL) the others.
"""

import asyncio
import contextlib
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
from harness import ROOT, Report, interleave, paired_ratios, pin
from rollout_played import EPISODES, GROUPS, LANES, MEMBERS, PROMPT, ROLE, TURNS, Meter, Platform, Spent, database

from flexmarl.contracts.wire import PolicyPin
from tests.support.engines import SECRET, WORDS, RunningEngine, running_engine
from workers.rollout.engines.wire import CompletionRequest, CompletionResponse

Side = Callable[[int, int], Spent]
"""(tokens of a turn, commands of each lane) -> what so many turns cost."""
COMMANDS = {16: 16, 128: 4, 512: 1}
"""Tokens of a turn -> commands of each lane in one run: a few seconds each."""


async def raw(engine: RunningEngine, pin: PolicyPin, tokens: int, turns: int) -> int:
    """Ask for `turns` replies, `EPISODES` at once."""
    rng, left = random.Random(tokens), iter(range(turns))
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}

    async def one(session: aiohttp.ClientSession) -> None:
        for seed in left:
            prompt = [1, *(rng.randrange(3, WORDS) for _ in range(PROMPT - 1))]
            asked = CompletionRequest(ROLE, [prompt], tokens, [seed], version=pin.version, digest=pin.digest)
            async with session.post("/v1/completions", data=msgspec.json.encode(asked)) as response:
                body = await response.read()
            answer = msgspec.json.decode(body, type=CompletionResponse)
            assert len(answer.choices[0].token_ids) == tokens

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(engine.url, headers=headers, connector=connector) as session:
        await asyncio.gather(*(one(session) for _ in range(EPISODES)))
    return turns


class Sides:
    """One engine, asked by the platform and raw."""

    def __init__(self, platform: Platform, engine: RunningEngine, core: int) -> None:
        self.platform, self.core = platform, core
        self._engine = engine

    def play(self, tokens: int, commands: int) -> Spent:
        return asyncio.run(self._play(tokens, commands))

    async def _play(self, tokens: int, commands: int) -> Spent:
        async with self.platform.player(tokens) as player:
            await self.platform.play(player, 1)
            meter = Meter([self._engine.child.pid], self.platform)
            return meter.spent(await self.platform.play(player, commands))

    def raw(self, tokens: int, commands: int) -> Spent:
        return asyncio.run(self._ask(tokens, commands * LANES * GROUPS * MEMBERS * TURNS))

    async def _ask(self, tokens: int, turns: int) -> Spent:
        await raw(self._engine, self.platform.pin, tokens, EPISODES)
        meter = Meter([self._engine.child.pid], self.platform)
        return meter.spent(await raw(self._engine, self.platform.pin, tokens, turns))


@contextlib.contextmanager
def stage(engine: str) -> Iterator[Sides]:
    """Start an engine with weights on a core of its own, and the platform beside it."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
    allowed = os.sched_getaffinity(0)
    with contextlib.ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="flexmarl-bench-")))
        (folder / "engine").mkdir()
        running = started.enter_context(running_engine(engine, folder / "engine"))
        core = pin(0, running.child.pid)
        started.callback(os.sched_setaffinity, 0, allowed)
        os.sched_setaffinity(0, allowed - {core} or allowed)
        held = PolicyPin(version=0, digest=running.put(0))
        asyncio.run(running.load(ROLE, held.version, held.digest))
        platform = Platform(*started.enter_context(database(folder)), held)
        started.callback(platform.close)
        platform.add(0, running)
        yield Sides(platform, running, core)


def compare(report: Report, engine: str, against: str, play: Side, ask: Side) -> None:
    """Let two sides make the same turns, one after the other, at every length."""
    repeats = 2 if report.quick else int(report.settings["repeats"])  # type: ignore[call-overload]
    for tokens in report.settings["tokens"]:  # type: ignore[attr-defined]
        commands = 1 if report.quick else COMMANDS[tokens]
        spent: dict[str, list[Spent]] = {engine: [], against: []}

        def rate(name: str, side: Side, tokens: int = tokens, n: int = commands, spent: dict = spent) -> float:
            one = side(tokens, n)
            spent[name].append(one)
            return one.turns * tokens / one.wall

        sides = {engine: lambda rate=rate: rate(engine, play), against: lambda rate=rate: rate(against, ask)}
        rates = interleave(sides, repeats)
        report.ratio(f"{engine}_share_of_{against}_{tokens}", paired_ratios(rates[engine], rates[against]))
        each = {name: [one.engine / one.turns for one in spent[name]] for name in spent}
        report.ratio(f"{engine}_engine_cpu_of_{against}_{tokens}", paired_ratios(each[engine], each[against]))
        tell(report, f"{engine}_beside_{against}", tokens, rates[engine], spent[engine])
        tell(report, f"{engine}_{against}", tokens, rates[against], spent[against])
    report.settings |= {"episodes": EPISODES, "lanes": LANES, "turns_per_episode": TURNS, "prompt": PROMPT + 1}


def tell(report: Report, prefix: str, tokens: int, rates: list[float], spent: list[Spent]) -> None:
    """Record tokens per second, and processor milliseconds per turn by who spent them."""
    report.figures[f"{prefix}_tokens_per_s_{tokens}"] = float(np.median(rates))
    for who, of in (("worker", "own"), ("engine", "engine"), ("store", "store")):
        each = [1e3 * getattr(one, of) / one.turns for one in spent]
        report.figures[f"{prefix}_{who}_ms_per_turn_{tokens}"] = float(np.median(each))


def torch(report: Report) -> None:
    with stage("torch") as sides:
        compare(report, "torch", "raw", sides.play, sides.raw)


def vllm(report: Report) -> None:
    with stage("vllm") as sides:
        compare(report, "vllm", "raw", sides.play, sides.raw)


def cpu(report: Report) -> None:
    """Tell what the platform's side spends on a turn beside the engine, which is a torch engine."""
    repeats = 1 if report.quick else int(report.settings["repeats"])  # type: ignore[call-overload]
    with stage("torch") as sides:
        for tokens in report.settings["tokens"]:  # type: ignore[attr-defined]
            spent = [sides.play(tokens, 1 if report.quick else COMMANDS[tokens]) for _ in range(repeats)]
            report.figures[f"cpu_ms_per_turn_{tokens}"] = float(np.median([1e3 * s.own / s.turns for s in spent]))
            report.figures[f"store_ms_per_turn_{tokens}"] = float(np.median([1e3 * s.store / s.turns for s in spent]))
