"""New weights under load: four torch engines take version after version while 64 episodes play, and nothing is dropped.

Cohorts are pinned as the orchestrator pins them: an episode keeps the version it began with, an engine keeps that one
beside the new one, and the next version is loaded when nobody plays with the one before. All engines load at the same
time. A turn that was refused, moved or asked again, and an episode that failed, would each be counted.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from harness import ROOT, Report
from rollout_played import EPISODES, LANES, ROLE, Platform, database

from flexmarl.contracts.wire import PolicyPin
from tests.support.engines import RunningEngine
from workers.rollout.player import Player

ENGINES, TOKENS = 4, 32


@contextlib.contextmanager
def engines(folder: Path) -> Iterator[list[RunningEngine]]:
    """Start torch engines that share a state plane."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
    folder.mkdir()
    started: list[RunningEngine] = []
    try:
        for number in range(ENGINES):
            started.append(RunningEngine("torch", folder, life=f"life-{number}"))
        yield [engine.ready() for engine in started]
    finally:
        for engine in started:
            engine.child.stop(20.0)


class Story:
    """Lanes play cohort after cohort; between two of them the next version comes in."""

    def __init__(self, platform: Platform, fleet: list[RunningEngine], player: Player) -> None:
        self._platform, self._fleet, self._player = platform, fleet, player
        self._playing: dict[int, int] = {}
        """Version -> lanes that play with it."""
        self._over = False
        self.load_s: list[float] = []
        self.loads_at: list[tuple[float, float]] = []
        self.commands = 0

    async def run(self, versions: int) -> None:
        lanes = [asyncio.create_task(self._lane()) for _ in range(LANES)]
        for version in range(1, versions + 1):
            while any(lanes for older, lanes in self._playing.items() if older < self._platform.pin.version):
                await asyncio.sleep(0.01)
            await self._publish(PolicyPin(version=version, digest=self._fleet[0].put(version)))
        self._over = True
        await asyncio.gather(*lanes)

    async def _lane(self) -> None:
        while not self._over:
            version = self._platform.pin.version
            self._playing[version] = self._playing.get(version, 0) + 1
            await self._player.play(1, self._platform.command())
            self._playing[version] -= 1
            self.commands += 1

    async def _publish(self, pin: PolicyPin) -> None:
        began = time.time()
        await asyncio.gather(*(self._load(engine, pin) for engine in self._fleet))
        self.loads_at.append((began, time.time()))
        self._platform.pin = pin

    async def _load(self, engine: RunningEngine, pin: PolicyPin) -> None:
        began = time.perf_counter()
        await engine.load(ROLE, pin.version, pin.digest, (self._platform.pin.version,))
        self.load_s.append(time.perf_counter() - began)
        self._platform.holds(engine, pin)


async def play(report: Report, platform: Platform, fleet: list[RunningEngine], versions: int) -> None:
    async with platform.player(TOKENS) as player:
        story = Story(platform, fleet, player)
        await story.run(versions)
        counters = player._contexts[1].client.counters
        turns, failed, again = platform.account()
        stats = [await engine.stats() for engine in fleet]
    assert {one.holds[ROLE].version for one in stats} == {versions}
    report.figures |= {
        "loads": len(story.load_s),
        "load_s": float(np.median(story.load_s)),
        "load_s_longest": max(story.load_s),
        "loads_turns": turns,
        "loads_commands": story.commands,
        "loads_episodes_failed": failed,
        "loads_episodes_tried_again": again,
        "loads_turns_asked_again": counters.retries,
        "loads_turns_moved": sum(counters.moved.values()),
        "loads_turns_refused": sum(counters.refused.values()),
        "loads_share_of_time": sum(b - a for a, b in story.loads_at) / (story.loads_at[-1][1] - story.loads_at[0][0]),
    }


def loads(report: Report) -> None:
    """Load versions one after another under load."""
    versions = 3 if report.quick else 40
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as name:
        folder = Path(name)
        with engines(folder / "engines") as fleet, database(folder) as (postgres, home):
            first = PolicyPin(version=0, digest=fleet[0].put(0))
            platform = Platform(postgres, home, first)
            for number, engine in enumerate(fleet):
                asyncio.run(engine.load(ROLE, first.version, first.digest))
                platform.add(number, engine)
            asyncio.run(play(report, platform, fleet, versions))
            platform.close()
    report.settings |= {"engines": ENGINES, "episodes": EPISODES, "tokens_of_a_turn": TOKENS, "versions": versions}
