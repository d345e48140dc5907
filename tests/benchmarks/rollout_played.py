"""Episodes as the platform plays them, for benchmarks: the real player, a real PostgreSQL, real rows, real engines.

The team has one role that talks `TURNS` times, a fixed number of tokens each, to prompts of random words. Commands
come as the driver puts them, `LANES` at once, and the run lets `EPISODES` episodes play at the same time: while some
are written others play. The broker, which carries one number per command, and the driver are left out.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import psycopg

from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Origin, PolicyPin
from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.store import schema
from flexmarl.store.control import runs
from flexmarl.store.data.segments import SegmentFolder
from tests.support.engines import SECRET, WORDS, RunningEngine
from workers.database import open_pool
from workers.models import tokenizer_json
from workers.rollout.environments.base import Ask, Demonstration, Outcome, Reply
from workers.rollout.player import Player

RUN, ROLE = 1, "speaker"
TURNS, PROMPT = 4, 16
EPISODES = 64
LANES, GROUPS, MEMBERS = 8, 2, 8
VOCABULARY = ("<pad>", "<bos>", "<eos>", *(f"w{number}" for number in range(3, WORDS)))


class Talk:
    """One role talks, and nothing else happens."""

    roles = (ROLE,)

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def vocabulary(self) -> tuple[str, ...]:
        return VOCABULARY

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> "Conversation":
        return Conversation(self.tokens, rng)

    def demonstrations(self, rng: random.Random, count: int) -> list[Demonstration]:
        return []


class Conversation:
    def __init__(self, tokens: int, rng: random.Random) -> None:
        self.tokens, self.rng, self.turns = tokens, rng, 0

    def asks(self) -> list[Ask]:
        words = self.rng.choices(VOCABULARY[3:], k=PROMPT - 1)
        return [Ask(ROLE, " ".join(words), self.tokens)] if self.turns < TURNS else []

    def act(self, replies: list[Reply]) -> None:
        self.turns += 1

    def outcome(self) -> Outcome:
        return Outcome({ROLE: 1.0}, 1.0, True)

    def describe(self) -> dict[str, object]:
        return {"title": "talk", "facts": {}}


SPEC = resolve(
    {
        "agents": {"speaker": {}, "listener": {}},
        "policies": {"speaker": {"model": {"size": "M"}}, "listener": {"model": {"size": "M"}}},
        "environment": {"type": "reference_game"},
        "batch": {
            "tasks_per_step": EPISODES // MEMBERS,
            "episodes_per_task": MEMBERS,
            "episode_timeout_s": 3600.0,  # a machine that is busy with other work is no reason to play again
        },
        "mechanisms": {"parallel": {"episodes": EPISODES}},
    }
)


class Platform:
    """A database with one run whose engines are given, and a player of that run."""

    def __init__(self, postgres: EmbeddedPostgres, home: Home, pin: PolicyPin) -> None:
        self.pin = pin
        self._postgres, self._folder = postgres, SegmentFolder(home.root / "payloads")
        self._conn = psycopg.connect(postgres.url, autocommit=True)
        self._no = 0
        schema.apply(self._conn)
        runs.create_run(self._conn, RUN, SPEC.document, RunStatus.RUNNING)
        body = tokenizer_json(VOCABULARY).decode()
        self._conn.execute("INSERT INTO store.tokenizer VALUES (%s, %s, %s)", [RUN, ROLE, body])
        self._conn.execute("INSERT INTO store.node (name, address, incarnation) VALUES ('n', '127.0.0.1:1', 'i')")

    def add(self, number: int, engine: RunningEngine) -> None:
        """Name an engine that holds the pinned weights."""
        device = f"n.cpu{number}"
        self._conn.execute(
            "INSERT INTO store.device (id, node, kind, ordinal) VALUES (%s, 'n', 'cpu', %s)", [device, number]
        )
        self._conn.execute(
            "INSERT INTO store.lease (device_id, run_id, use, incarnation, secret, endpoint) "
            "VALUES (%s, %s, 'engine', %s, %s, %s)",
            [device, RUN, engine.child.incarnation, SECRET, engine.url],
        )
        self.holds(engine, self.pin)

    def holds(self, engine: RunningEngine, pin: PolicyPin) -> None:
        """Note what an engine holds, as its node does after a load."""
        self._conn.execute(
            "INSERT INTO store.engine_policy (lease_id, incarnation, policy, version, digest) "
            "SELECT id, incarnation, %s, %s, %s FROM store.lease WHERE incarnation = %s "
            "ON CONFLICT (lease_id, policy) DO UPDATE SET former_version = engine_policy.version, "
            "former_digest = engine_policy.digest, version = excluded.version, digest = excluded.digest",
            [ROLE, pin.version, pin.digest, engine.child.incarnation],
        )

    @contextlib.asynccontextmanager
    async def player(self, tokens: int):
        """Return a player whose role says so many tokens a turn; connected, with its run's context open."""
        with open_pool(self._postgres.url, "benchmark", 2) as pool:
            player = Player(pool, self._folder, "benchmark")
            context = replace(await player._open(RUN), stage=Talk(tokens))  # type: ignore[arg-type]
            agent = SPEC.spec.agents[ROLE]
            agent = agent.model_copy(update={"sampling": agent.sampling.model_copy(update={"max_tokens": tokens})})
            context.spec = SPEC.spec.model_copy(update={"agents": {ROLE: agent}})
            player._contexts[RUN] = context
            try:
                yield player
            finally:
                await player.close()

    def command(self) -> int:
        """Put one command of a lane; returns its number."""
        self._no += 1
        groups = tuple(GroupOrder(draw=self._no * GROUPS + i, task_seed=i, members=MEMBERS) for i in range(GROUPS))
        body = PlayGroups(
            pool="default", epoch=1, origin=Origin.TRAIN, groups=groups, pins={ROLE: self.pin}, sampling_seed=self._no
        ).model_dump_json()
        self._conn.execute(
            "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, queue, body) "
            "VALUES (%s, %s, 1, 1, 'play_groups', 'broker', 'rollout.default', %s::jsonb)",
            [RUN, self._no, body],
        )
        return self._no

    async def play(self, player: Player, commands: int) -> int:
        """Play so many commands in each lane, one after another; returns the turns that were written."""

        async def lane(numbers: list[int]) -> None:
            for no in numbers:
                await player.play(RUN, no)

        first = self._no + 1
        await asyncio.gather(*(lane([self.command() for _ in range(commands)]) for _ in range(LANES)))
        return self._written(first)

    def _written(self, first: int) -> int:
        """Return the turns of the commands since `first`, all of whose episodes finished."""
        turns, failed, _ = self.account(first)
        if failed:
            raise RuntimeError(f"{failed} episodes did not finish")
        return turns

    def account(self, first: int = 0) -> tuple[int, int, int]:
        """Return turns that are written, episodes that failed and those played again, of commands since `first`."""
        row = self._conn.execute(
            "SELECT sum(turns), count(*) FILTER (WHERE status <> 'finished'), count(*) FILTER (WHERE attempt > 1) "
            "FROM store.episode WHERE draw >= %s",
            [first * GROUPS],
        ).fetchone()
        assert row is not None
        return int(row[0]), int(row[1]), int(row[2])

    def server_cpu_s(self) -> float:
        """Return processor seconds of the database server."""
        assert self._postgres.process is not None
        return cpu_s(self._postgres.process.pid)

    def close(self) -> None:
        self._conn.close()


@contextlib.contextmanager
def database(folder: Path) -> Iterator[tuple[EmbeddedPostgres, Home]]:
    """Start a PostgreSQL of the platform's making."""
    folder.chmod(0o711)
    home = Home(folder / "home")
    home.prepare()
    postgres = EmbeddedPostgres(home)
    postgres.start()
    try:
        yield postgres, home
    finally:
        postgres.stop()


@dataclass(frozen=True)
class Spent:
    """What a stretch of play cost, in seconds."""

    wall: float
    own: float
    engine: float
    store: float
    turns: int


class Meter:
    """Reads clocks around a stretch."""

    def __init__(self, engines: list[int], platform: Platform) -> None:
        self._engines, self._platform = engines, platform
        self._began = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        engines = sum(cpu_s(pid) for pid in self._engines)
        return time.perf_counter(), time.process_time(), engines, self._platform.server_cpu_s()

    def spent(self, turns: int) -> Spent:
        return Spent(*(now - then for now, then in zip(self._now(), self._began, strict=True)), turns)


def cpu_s(pid: int) -> float:
    """Return processor seconds of a process and of its children, living and waited for."""
    total = 0.0
    process = psutil.Process(pid)
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
            if one is process:
                total += times.children_user + times.children_system
    return total
