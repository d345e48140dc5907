"""The exchange as a process of its own, and trainings of one process that share through it."""

import asyncio
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Self

from flexmarl.algorithms.shared_members import learned
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import EpisodeStatus, Origin, PolicyPin
from flexmarl.store.data.groups import SettledGroup
from flexmarl.store.telemetry.sharing_reports import SharingReport
from tests.support.local_training import LocalTraining, _Episode
from workers.exchange.access import ExchangeAccess
from workers.exchange.storage import ExchangeStorage
from workers.rollout.datasets import DatasetLines
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, checked
from workers.rollout.sharing import Sharing

ROOT = Path(__file__).parents[2]
READY_S = 60.0
COMMAND = [sys.executable, "-m", "workers.exchange"]


class Exchange:
    """`python -m workers.exchange serve` on a free port, with its folder."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home, self._options = home, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}", "PATH": "/usr/bin:/bin"}
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the service and wait until it answers."""
        place = ["--home", str(self.home), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*COMMAND, "serve", *place, *self._options],
            env=self._environment,
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            assert self.process.poll() is None, "the exchange ended"
            try:
                with urllib.request.urlopen(f"{self.url}/healthz", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError("the exchange does not answer")

    def kill(self) -> None:
        """End it at once, whatever it is at."""
        self.process.kill()
        self.process.wait()

    def member(self, name: str) -> ExchangeAccess:
        """Enrol an installation."""
        with closing(ExchangeStorage(self.home / "exchange.sqlite")) as storage:
            return ExchangeAccess(self.url, name, bytes.fromhex(storage.enrol(name, time.time())))

    def enrolled(self, name: str) -> ExchangeAccess:
        """Enrol an installation as an operator does."""
        command = [*COMMAND, "enrol", name, "--home", str(self.home)]
        told = subprocess.run(
            command, env=self._environment, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        return ExchangeAccess(self.url, name, bytes.fromhex(told.strip().rpartition("=")[2]))

    def empty(self) -> None:
        """Remove every member, with all that it published and used of its quota."""
        with closing(sqlite3.connect(self.home / "exchange.sqlite", timeout=30)) as file, file:
            for table in ("member", "rollout", "posted"):
                file.execute(f"DELETE FROM {table}")


class SharingTraining(LocalTraining):
    """One installation whose groups have members that others said, as a rollout worker puts them together."""

    def __init__(
        self,
        spec: ExperimentSpec,
        home: str,
        access: ExchangeAccess,
        loop: asyncio.AbstractEventLoop,
        lines: DatasetLines | None = None,
    ) -> None:
        super().__init__(spec, home, lines=lines)
        self.loop, self.own, self.report = loop, 0, SharingReport("", "", 0, 0, 0)
        self.own_scores: list[float] = []
        """Team scores of the episodes that its own engines played to train on, in their order."""
        self._used: set[str] = set()
        self.sharing = loop.run_until_complete(self._begun(access))

    async def _begun(self, access: ExchangeAccess) -> Sharing:
        return Sharing(self.spec, access, self._claim, self._told)

    async def _claim(self, digests: Sequence[str]) -> list[str]:
        new = [digest for digest in digests if digest not in self._used]
        self._used.update(new)
        return new

    async def _told(self, report: SharingReport) -> None:
        self.report = report

    @property
    def pins(self) -> dict[str, PolicyPin]:
        """Return the weights that it has come to, by digest."""
        return dict(self._pins)

    def exchange(self) -> None:
        """Publish what waits and read what is new."""
        self.loop.run_until_complete(self.sharing.turn())

    def close(self) -> None:
        self.loop.run_until_complete(self.sharing.stop())

    def play(self, draws: Sequence[int], origin: Origin, members: int) -> list[list[EpisodeAttempt]]:
        if origin is Origin.EVAL:
            return super().play(draws, origin, members)
        own = members - self.sharing.foreign
        others = {draw: self._others(draw, range(own, members)) for draw in draws}
        played = self._engines({draw: members - len(kept) for draw, kept in others.items()})
        self.own += sum(map(len, played.values()))
        found = [attempt.outcome for own in played.values() for attempt in own]
        self.own_scores += [outcome.team_score for outcome in found if outcome is not None]
        return [[*played[draw], *_behind(others[draw], len(played[draw]))] for draw in draws]

    def _others(self, draw: int, places: range) -> list[EpisodeAttempt]:
        task = self.plan.training_seed(self._task_of.get(draw, draw))
        orders = [EpisodeOrder(draw, member, 1, task, False, self.spec.seed, 120.0, 120.0, None) for member in places]
        return self.loop.run_until_complete(self.sharing.members(orders, self.family, self._seats(greedy=False)))

    def _engines(self, members: dict[int, int]) -> dict[int, list[EpisodeAttempt]]:
        seats, played = self._seats(greedy=False), {}
        for draw, count in members.items():
            played[draw] = [self._begin(draw, member, Origin.TRAIN, seats) for member in range(count)]
            for episode in played[draw]:
                episode.attempt.task = episode.environment.describe()
        live: list[_Episode] = [episode for group in played.values() for episode in group]
        while live := [episode for episode in live if episode.asks]:
            self._advance(live)
        for group in played.values():
            for episode in group:
                episode.attempt.outcome = checked(episode.environment.outcome(), seats)
                episode.attempt.status = EpisodeStatus.FINISHED
        return {draw: [episode.attempt for episode in group] for draw, group in played.items()}

    def _judged(self, group: list[EpisodeAttempt]) -> tuple[SettledGroup, list[list[float]]]:
        settled, advantages = super()._judged(group)
        self.sharing.offer([settled])
        return settled, learned(settled.event.episodes, advantages, self.spec.sampling.sharing.learn_from)


def _behind(others: list[EpisodeAttempt], first: int) -> list[EpisodeAttempt]:
    """Number what others said behind the members that engines played."""
    for member, attempt in enumerate(others, first):
        attempt.order = replace(attempt.order, member=member)
    return others
