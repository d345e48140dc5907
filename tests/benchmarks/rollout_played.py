"""Episodes as the platform plays them, for benchmarks: the real player, a real PostgreSQL, real rows, real engines.

The team has one role that talks several times, a fixed number of tokens each: to prompts of random words, or as a chat
model in a conversation. Commands come as the driver puts them, several lanes at once, and the run lets so many episodes
play at the same time: while some are written others play. The broker, which carries one number per command, and the
driver are left out.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
from chat_talk import ChatTalk, Endless, Prompts, spoken

from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.resolve import Resolved, resolve
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Origin, PolicyPin
from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.store import schema
from flexmarl.store.control import runs
from flexmarl.store.data import tokenizers
from flexmarl.store.data.segments import SegmentFolder
from tests.support.engines import SECRET, WORDS, RunningEngine
from workers.database import open_pool
from workers.models import tokenizer_json
from workers.models.tokenizer import Spoken
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

    async def close(self) -> None:
        """End nothing: it scores by itself."""

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


class Words:
    """The prompts of `Talk`, each for itself."""

    def first(self, seed: int) -> list[int]:
        return self.next([], [], seed, 0)

    def next(self, prompt: list[int], reply: list[int], seed: int, turn: int) -> list[int]:
        rng = random.Random(seed * TURNS + turn)
        return [1, *(rng.randrange(3, WORDS) for _ in range(PROMPT - 1))]


@dataclass(frozen=True)
class Team:
    """Who plays, with which model and how many at once."""

    model: dict[str, Any] = field(default_factory=lambda: {"size": "M"})
    spoken: Spoken = field(default_factory=lambda: Spoken(tokenizer_json(VOCABULARY)))
    episodes: int = EPISODES
    """At the same time."""
    lanes: int = LANES
    """Commands that are carried out at the same time."""
    groups: int = GROUPS
    """Of a command."""
    turns: int = TURNS
    """Of an episode."""

    def resolved(self) -> Resolved:
        policy, groups = {"model": self.model}, max(1, self.episodes // MEMBERS)
        return resolve(
            {
                "agents": {"speaker": {}, "listener": {}},
                "policies": {"speaker": policy, "listener": policy},
                "environment": {"type": "reference_game"},
                "batch": {
                    "tasks_per_step": groups,
                    "micro_batch_groups": groups,
                    "rollout_groups": groups,
                    "episodes_per_task": MEMBERS,
                    "episode_timeout_s": 3600.0,  # a machine that is busy with other work is no reason to play again
                },
                "mechanisms": {"parallel": {"episodes": self.episodes}},
            }
        )

    @property
    def prompts(self) -> "Words | Prompts":
        """Return what clients ask that keep no conversation."""
        return Prompts(self.spoken) if self.spoken.chat else Words()

    def stage(self, tokens: int) -> "Talk | ChatTalk":
        return ChatTalk(ROLE, tokens, self.turns) if self.spoken.chat else Talk(tokens)

    def turns_of(self, commands: int) -> int:
        """Return the turns of so many commands in each lane."""
        return commands * self.lanes * self.groups * MEMBERS * self.turns


def chat_team(folder: Path) -> Team:
    """Return 16 conversations at once of a folder's model, of two turns each."""
    return Team({"type": "folder", "path": str(folder)}, spoken(folder), episodes=16, lanes=2, groups=1, turns=2)


class Platform:
    """A database with one run whose engines are given, and a player of that run."""

    def __init__(self, postgres: EmbeddedPostgres, home: Home, pin: PolicyPin, team: Team | None = None) -> None:
        self.pin = pin
        self.team = team or Team()
        self._resolved = self.team.resolved()
        self._postgres, self._folder = postgres, SegmentFolder(home.root / "payloads")
        self._conn = psycopg.connect(postgres.url, autocommit=True)
        self._no = 0
        schema.apply(self._conn)
        runs.create_run(self._conn, RUN, self._resolved.document, RunStatus.RUNNING)
        tokenizers.keep(self._conn, RUN, ROLE, self.team.spoken.tokenizer, self.team.spoken.chat)
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
            context = replace(await player._open(RUN), stage=self.team.stage(tokens))  # type: ignore[arg-type]
            agent = self._resolved.spec.agents[ROLE]
            agent = agent.model_copy(update={"sampling": agent.sampling.model_copy(update={"max_tokens": tokens})})
            context.spec = self._resolved.spec.model_copy(update={"agents": {ROLE: agent}})
            if self.team.spoken.chat:
                context.renderers[ROLE] = Endless(self.team.spoken)
            player._contexts[RUN] = context
            try:
                yield player
            finally:
                await player.close()

    def command(self) -> int:
        """Put one command of a lane; returns its number."""
        self._no += 1
        count = self.team.groups
        draws = range(self._no * count, (self._no + 1) * count)
        groups = tuple(GroupOrder(draw=draw, task_seed=draw, members=MEMBERS) for draw in draws)
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
        await asyncio.gather(*(lane([self.command() for _ in range(commands)]) for _ in range(self.team.lanes)))
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
            [first * self.team.groups],
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
