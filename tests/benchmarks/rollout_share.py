"""The platform's turns against raw requests to the same engine: tokens per second, and processor time per turn.

Raw is the plainest client that keeps as many requests in flight as there are episodes: each asks for the replies of one
conversation over the same HTTP, and begins the next one when it has them; nothing is kept. On a CPU the engine has a
core of its own, everything else (player or raw client, PostgreSQL) the others. With a chat model (`--model`) both sides
put the same prompts, made by the model's own template; a word model is asked for each reply by itself.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
from harness import ROOT, Report, interleave, paired_ratios, pin
from rollout_played import MEMBERS, ROLE, Meter, Platform, Spent, Team, chat_team, database

from flexmarl.contracts.wire import PolicyPin
from tests.support.engines import SECRET, RunningEngine
from workers.rollout.engines.wire import CompletionRequest, CompletionResponse

Side = Callable[[int, int], Spent]
"""(tokens of a turn, commands of each lane) -> what so many turns cost."""
COMMANDS = {16: 16, 128: 4, 512: 1}
"""Tokens of a turn -> commands of each lane in one run: a few seconds each."""


async def raw(engine: RunningEngine, platform: Platform, tokens: int, tasks: Sequence[int]) -> int:
    """Have each task talked about by every member of its group, as many at once as episodes; returns the turns."""
    team, left = platform.team, iter([(task, member) for task in tasks for member in range(MEMBERS)])
    prompts, held = team.prompts, platform.pin
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}

    async def one(session: aiohttp.ClientSession) -> None:
        for task, member in left:
            prompt = prompts.first(task)
            for turn in range(team.turns):
                seed = (task * MEMBERS + member) * team.turns + turn
                asked = CompletionRequest(ROLE, [prompt], tokens, [seed], version=held.version, digest=held.digest)
                async with session.post("/v1/completions", data=msgspec.json.encode(asked)) as response:
                    body = await response.read()
                reply = msgspec.json.decode(body, type=CompletionResponse).choices[0].token_ids
                assert len(reply) == tokens
                prompt = prompts.next(prompt, reply, task, turn + 1)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(engine.url, headers=headers, connector=connector) as session:
        await asyncio.gather(*(one(session) for _ in range(team.episodes)))
    return len(tasks) * MEMBERS * team.turns


class Sides:
    """One engine, asked by the platform and raw."""

    def __init__(self, platform: Platform, engine: RunningEngine, core: int) -> None:
        self.platform, self.core = platform, core
        self._engine = engine
        self._asked = 0
        """Tasks that raw sides have asked about."""

    @property
    def warms_up(self) -> bool:
        """Whether a run begins with commands that do not count: of a chat model these would take as long as those."""
        return not self.platform.team.spoken.chat

    def tasks(self, commands: int) -> list[int]:
        """Return as many tasks as so many commands of each lane have, other ones each time."""
        count = commands * self.platform.team.lanes * self.platform.team.groups
        self._asked += count
        return list(range(self._asked - count, self._asked))

    def play(self, tokens: int, commands: int) -> Spent:
        return asyncio.run(self._play(tokens, commands))

    async def _play(self, tokens: int, commands: int) -> Spent:
        async with self.platform.player(tokens) as player:
            if self.warms_up:
                await self.platform.play(player, 1)
            meter = Meter([self._engine.child.pid], self.platform)
            return meter.spent(await self.platform.play(player, commands))

    def raw(self, tokens: int, commands: int) -> Spent:
        return asyncio.run(self._ask(tokens, commands))

    async def _ask(self, tokens: int, commands: int) -> Spent:
        if self.warms_up:
            await raw(self._engine, self.platform, tokens, self.tasks(1))
        meter = Meter([self._engine.child.pid], self.platform)
        return meter.spent(await raw(self._engine, self.platform, tokens, self.tasks(commands)))


@contextlib.contextmanager
def stage(engine: str, settings: Mapping[str, Any], quick: bool = False) -> Iterator[Sides]:
    """Start an engine with weights, on a CPU on a core of its own, and the platform beside it."""
    team = chat_team(Path(settings["model"]).resolve()) if settings["model"] else Team()
    team = replace(team, episodes=16, lanes=2, groups=1, turns=1) if quick else team
    roots = (str(Path(settings["model"]).resolve().parent),) if settings["model"] else ()
    device = settings["device"]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
    allowed = os.sched_getaffinity(0)
    with contextlib.ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="flexmarl-bench-")))
        (folder / "engine").mkdir()
        spec = {**team.resolved().document, "resources": {"engine": engine}}
        running = RunningEngine(engine, folder / "engine", device=device, spec=spec, roots=roots)
        started.callback(running.child.stop, 20.0)
        running.ready()
        core = -1
        if device == "cpu":
            core = pin(0, running.child.pid)
            started.callback(os.sched_setaffinity, 0, allowed)
            os.sched_setaffinity(0, allowed - {core} or allowed)
        held = PolicyPin(version=0, digest=running.put(0))
        asyncio.run(running.load(ROLE, held.version, held.digest))
        platform = Platform(*started.enter_context(database(folder)), held, team)
        started.callback(platform.close)
        platform.add(0, running)
        sides = Sides(platform, running, core)
        sides.play(8, 1)
        yield sides


def commands_of(team: Team, tokens: int) -> int:
    """Return the commands of each lane in one run: of a chat model at least 4096 tokens, which take a minute."""
    return COMMANDS[tokens] if not team.spoken.chat else max(1, 4096 // (tokens * team.turns_of(1)))


def compare(report: Report, engine: str, against: str, team: Team, play: Side, ask: Side) -> None:
    """Let two sides make the same turns, one after the other, at every length."""
    repeats = 2 if report.quick else int(report.settings["repeats"])  # type: ignore[call-overload]
    for tokens in report.settings["tokens"]:  # type: ignore[attr-defined]
        commands = 1 if report.quick else commands_of(team, tokens)
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
    report.settings |= {"episodes": team.episodes, "lanes": team.lanes, "turns_per_episode": team.turns}
    report.settings["prompt"] = len(team.prompts.first(0))


def tell(report: Report, prefix: str, tokens: int, rates: list[float], spent: list[Spent]) -> None:
    """Record tokens per second, and processor milliseconds per turn by who spent them."""
    report.figures[f"{prefix}_tokens_per_s_{tokens}"] = float(np.median(rates))
    for who, of in (("worker", "own"), ("engine", "engine"), ("store", "store")):
        each = [1e3 * getattr(one, of) / one.turns for one in spent]
        report.figures[f"{prefix}_{who}_ms_per_turn_{tokens}"] = float(np.median(each))


def torch(report: Report) -> None:
    with stage("torch", report.settings, report.quick) as sides:
        compare(report, "torch", "raw", sides.platform.team, sides.play, sides.raw)


def vllm(report: Report) -> None:
    with stage("vllm", report.settings, report.quick) as sides:
        compare(report, "vllm", "raw", sides.platform.team, sides.play, sides.raw)


def cpu(report: Report) -> None:
    """Tell what the platform's side spends on a turn beside the engine, which is a torch engine."""
    repeats = 1 if report.quick else int(report.settings["repeats"])  # type: ignore[call-overload]
    with stage("torch", report.settings, report.quick) as sides:
        for tokens in report.settings["tokens"]:  # type: ignore[attr-defined]
            commands = 1 if report.quick else commands_of(sides.platform.team, tokens)
            spent = [sides.play(tokens, commands) for _ in range(repeats)]
            report.figures[f"cpu_ms_per_turn_{tokens}"] = float(np.median([1e3 * s.own / s.turns for s in spent]))
            report.figures[f"store_ms_per_turn_{tokens}"] = float(np.median([1e3 * s.store / s.turns for s in spent]))
