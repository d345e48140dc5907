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
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
from harness import ROOT, Report, interleave, paired_ratios, pin
from rollout_played import EPISODES, LANES, PROMPT, ROLE, TURNS, Meter, Platform, Spent, database

from flexmarl.contracts.wire import PolicyPin
from tests.support.engines import SECRET, WORDS, RunningEngine, running_engine
from workers.rollout.engines.wire import CompletionRequest, CompletionResponse

COMMANDS = {16: 12, 128: 3, 512: 1}
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

    def __init__(self, platform: Platform, engine: RunningEngine) -> None:
        self._platform, self._engine = platform, engine

    def platform(self, tokens: int, commands: int) -> Spent:
        return asyncio.run(self._play(tokens, commands))

    async def _play(self, tokens: int, commands: int) -> Spent:
        async with self._platform.player(tokens) as player:
            await self._platform.play(player, 1)
            meter = Meter([self._engine.child.pid], self._platform)
            return meter.spent(await self._platform.play(player, commands))

    def raw(self, tokens: int, commands: int) -> Spent:
        return asyncio.run(self._ask(tokens, commands))

    async def _ask(self, tokens: int, commands: int) -> Spent:
        per_command = TURNS * EPISODES
        await raw(self._engine, self._platform.pin, tokens, EPISODES)
        meter = Meter([self._engine.child.pid], self._platform)
        return meter.spent(await raw(self._engine, self._platform.pin, tokens, commands * per_command))


@contextlib.contextmanager
def stage(engine: str) -> Iterator[Sides]:
    """Start an engine with weights on a core of its own, and the platform beside it."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder:
        (Path(folder) / "engine").mkdir()
        with running_engine(engine, Path(folder) / "engine") as running:
            core = pin(0, running.child.pid)
            others = os.sched_getaffinity(0) - {core}
            os.sched_setaffinity(0, others or {core})
            held = PolicyPin(version=0, digest=running.put(0))
            asyncio.run(running.load(ROLE, held.version, held.digest))
            with database(Path(folder)) as (postgres, home):
                platform = Platform(postgres, home, held)
                platform.add(0, running)
                yield Sides(platform, running)
                platform.close()
    os.sched_setaffinity(0, others | {core})


def share(report: Report, engine: str) -> None:
    """Compare both sides at every length, in turns."""
    repeats = 2 if report.quick else int(report.settings["repeats"])  # type: ignore[call-overload]
    with stage(engine) as sides:
        for tokens in report.settings["tokens"]:  # type: ignore[attr-defined]
            commands = 1 if report.quick else COMMANDS[tokens]
            spent: dict[str, list[Spent]] = {"platform": [], "raw": []}

            def rate(side: str, tokens: int = tokens, commands: int = commands, spent: dict = spent) -> float:
                spent[side].append(getattr(sides, side)(tokens, commands))
                return spent[side][-1].turns * tokens / spent[side][-1].wall

            rates = interleave({"platform": lambda: rate("platform"), "raw": lambda: rate("raw")}, repeats)
            report.ratio(f"{engine}_share_of_raw_{tokens}", paired_ratios(rates["platform"], rates["raw"]))
            engine_ms = {side: [one.engine / one.turns for one in spent[side]] for side in spent}
            report.ratio(f"{engine}_cpu_share_of_raw_{tokens}", paired_ratios(engine_ms["raw"], engine_ms["platform"]))
            for side, prefix in (("platform", engine), ("raw", f"{engine}_raw")):
                report.figures[f"{prefix}_tokens_per_s_{tokens}"] = float(np.median(rates[side]))
                tell(report, prefix, tokens, spent[side])
    report.settings |= {"episodes": EPISODES, "lanes": LANES, "turns_per_episode": TURNS, "prompt": PROMPT + 1}


def tell(report: Report, prefix: str, tokens: int, spent: list[Spent]) -> None:
    """Record processor milliseconds per turn, by who spent them."""
    for who, of in (("worker", "own"), ("engine", "engine"), ("store", "store")):
        each = [1e3 * getattr(one, of) / one.turns for one in spent]
        report.figures[f"{prefix}_{who}_ms_per_turn_{tokens}"] = float(np.median(each))


def torch(report: Report) -> None:
    share(report, "torch")


def vllm(report: Report) -> None:
    share(report, "vllm")


def cpu(report: Report) -> None:
    """Tell what the platform's side spends on a turn beside the engine, which is a torch engine."""
    with stage("torch") as sides:
        for tokens in report.settings["tokens"]:  # type: ignore[attr-defined]
            commands = 1 if report.quick else COMMANDS[tokens]
            repeats = 1 if report.quick else int(report.settings["repeats"])  # type: ignore[call-overload]
            spent = [sides.platform(tokens, commands) for _ in range(repeats)]
            report.figures[f"cpu_ms_per_turn_{tokens}"] = float(np.median([1e3 * s.own / s.turns for s in spent]))
            report.figures[f"store_ms_per_turn_{tokens}"] = float(np.median([1e3 * s.store / s.turns for s in spent]))
