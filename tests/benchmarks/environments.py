"""What episodes gain that move on their own, against episodes that take their turns in step with each other.

Environments wait for a normally distributed time at each answer (mean 1 s, deviation 1 s, never below 0). In both runs
the same episodes are played by the platform's own code (`workers.rollout.members`, `episode`, `engine_client`), with
the same waits, over the same paced engines: real processes and real HTTP, with a declared time per token.

- `async`: as the platform plays; a turn is asked for as soon as its own environment has answered.
- `lock_step`: a turn is asked for when the environments of all episodes have answered, as where turns are batched.

`gain` is the time of `lock_step` over that of `async`. The longest episode by itself bounds what any schedule can
reach: `async_share_of_bound` is its waits and replies over the time that `async` took. Both runs sleep nearly all the
time, so that other work on the machine matters little.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from uuid import uuid4

import aiohttp
import msgspec
from harness import ROOT, interleave, paired_ratios, start

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.wire import EpisodeStatus, Origin, PolicyPin
from flexmarl.store.control.commands import Taken
from flexmarl.store.control.engines import EngineRoute
from workers.external_access import ExternalAccess
from workers.models import tokenizer_json
from workers.rollout.engine_client import EngineClient
from workers.rollout.engines.wire import LoadRequest
from workers.rollout.environments.registry import family_of
from workers.rollout.external import ExternalClient
from workers.rollout.members import begin, play_group
from workers.rollout.run_context import RunContext
from workers.rollout.slots import slots
from workers.rollout.stages import stage_of
from workers.rollout.turns import TurnReply, TurnRequest
from workers.rollout.waiting import AttemptWaits
from workers.vocabulary import Codec

DIGEST = "0" * 64
PIN = PolicyPin(version=0, digest=DIGEST)
POLICY = "team"
MEMBERS = 8
COOKS = 2
ENGINES = 2


@dataclass(frozen=True)
class Setting:
    episodes: int
    turns: int
    mean_s: float
    deviation_s: float
    reply_s: float

    def spec(self) -> ExperimentSpec:
        latency = {"shape": "normal", "scale_s": self.mean_s, "sigma": self.deviation_s, "cap_s": 600}
        kitchen = {"type": "kitchen", "cooks": COOKS, "turns": self.turns, "actions_per_turn": 1, "dishes": 1}
        return resolve(
            {
                "agents": {f"cook_{i + 1}": {"policy": POLICY} for i in range(COOKS)},
                "environment": {**kitchen, "latency": latency},
                "batch": {"episode_timeout_s": 3600},
            }
        ).spec

    def order(self, seed: int) -> PlayGroups:
        groups = (GroupOrder(draw=n, task_seed=n, members=MEMBERS) for n in range(self.episodes // MEMBERS))
        return PlayGroups(
            pool="p", epoch=1, origin=Origin.TRAIN, groups=tuple(groups), pins={POLICY: PIN}, sampling_seed=seed
        )

    def bound(self, seed: int) -> float:
        """Return the seconds of the longest episode by itself."""
        latency = self.spec().environment.latency
        assert latency is not None

        def episode(draw: int, member: int) -> float:
            waits = AttemptWaits(latency, random.Random(derive(seed, "wait", draw, member, 1)))
            return sum(waits.next_s() + self.reply_s for _ in range(self.turns))

        return max(episode(n // MEMBERS, n % MEMBERS) for n in range(self.episodes))


class Engines:
    """Paced engines as processes."""

    def __init__(self, setting: Setting) -> None:
        command = [sys.executable, str(ROOT / "tests" / "support" / "paced_engine.py")]
        command += [str(COOKS * setting.episodes), str(setting.reply_s), "0"]
        environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}", "PATH": "/usr/bin:/bin"}
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            for _ in range(ENGINES)
        ]
        self.routes = []
        for number, process in enumerate(self._processes, 1):
            assert process.stdout is not None
            endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
            self.routes.append(EngineRoute(number, endpoint, "token", f"engine{number}", {POLICY: PIN}))

    async def load(self) -> None:
        async with aiohttp.ClientSession() as session:
            for route in self.routes:
                body = msgspec.json.encode(LoadRequest(POLICY, 0, DIGEST))
                async with session.post(f"{route.endpoint}/load", data=body) as answer:
                    assert answer.status == 200, await answer.text()

    async def registry(self) -> list[EngineRoute]:
        return self.routes

    def stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait(10)


class InStep:
    """Asks for turns only when every episode has come to its next one."""

    def __init__(self, client: EngineClient, asks: int) -> None:
        self._client, self._asks = client, asks
        self._here = 0
        self._all_here = asyncio.Event()

    async def until_held(self, request: TurnRequest, limit_s: float) -> float:
        return await self._client.until_held(request, limit_s)

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        self._here += 1
        together = self._all_here
        if self._here == self._asks:
            self._here, self._all_here = 0, asyncio.Event()
            together.set()
        await together.wait()
        return await self._client.turn(request, deadline)


async def play(setting: Setting, engines: Engines, kind: str, seed: int) -> float:
    """Play all episodes; returns the seconds it took."""
    spec, order = setting.spec(), setting.order(seed)
    client = EngineClient(engines.registry, ROUTERS.make(ROUTER.options("least_loaded")))
    asking = InStep(client, COOKS * setting.episodes) if kind == "lock_step" else client
    context = RunContext(
        run_id=1,
        spec=spec,
        stage=stage_of(spec.environment),
        codecs={POLICY: Codec(tokenizer_json(family_of(spec.environment).vocabulary()))},
        client=asking,  # type: ignore[arg-type]
        external=ExternalClient(ExternalAccess()),
        episodes=slots(None),
    )
    await engines.load()
    playing = begin(Taken(1, 1, uuid4(), 1, 1, order), order, context)
    began = time.monotonic()
    settled = await asyncio.gather(*(play_group(playing, group) for group in order.groups))
    took = time.monotonic() - began
    await client.close()
    rows = [row for group in settled for row in group.episodes]
    assert all(row.status is EpisodeStatus.FINISHED and row.turns == COOKS * setting.turns for row in rows), rows[0]
    return took


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--episodes", type=int, default=64, help=f"episodes at once, a multiple of {MEMBERS}")
    parser.add_argument("--turns", type=int, default=20, help="answers of an environment")
    parser.add_argument("--mean-s", type=float, default=1.0)
    parser.add_argument("--deviation-s", type=float, default=1.0)
    parser.add_argument("--reply-s", type=float, default=0.1, help="time of a reply, per turn")
    parser.add_argument("--repeats", type=int, default=5)


def main() -> None:
    report = start("environments", "episodes that move on their own against turns in step", options)
    repeats = int(report.settings.pop("repeats"))  # type: ignore[call-overload]
    setting = Setting(**report.settings)  # type: ignore[arg-type]
    if report.quick:
        setting, repeats = Setting(32, 8, 0.2, 0.2, 0.02), 2
    engines, bounds, seeds = Engines(setting), [], {"async": 0, "lock_step": 0}

    def once(kind: str) -> float:
        seeds[kind] += 1
        if kind == "async":
            bounds.append(setting.bound(seeds[kind]))
        return asyncio.run(play(setting, engines, kind, seeds[kind]))

    try:
        times = interleave({kind: (lambda kind=kind: once(kind)) for kind in seeds}, repeats)
    finally:
        engines.stop()
    report.ratio("gain", paired_ratios(times["lock_step"], times["async"]))
    report.ratio("async_share_of_bound", paired_ratios(bounds, times["async"]))
    for kind in seeds:
        report.figures[f"{kind}_s"] = sorted(times[kind])[len(times[kind]) // 2]
    report.settings |= {**vars(setting), "repeats": repeats, "asks_per_turn": COOKS}
    report.finish()


if __name__ == "__main__":
    main()
