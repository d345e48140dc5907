"""CPU milliseconds that the platform spends on a turn, without any model.

A real rollout player in one process, the engine's real HTTP face over an engine that answers at once in another, real
PostgreSQL behind. CPU seconds of all of them are read from the operating system around the measured commands and
divided by turns. The shares of the driver and of the node agent come from a real run through all services, where turns
are few tokens long: neither sees tokens. With `--model FOLDER` the role speaks in messages, through the template and
the tokenizer of a chat model: every turn adds to a conversation, and replies are words of its vocabulary.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
from chat_talk import TEXT, ChatTalk, spoken
from harness import ROOT, start
from psycopg_pool import ConnectionPool

from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Origin, PolicyPin
from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.store import schema
from flexmarl.store.control import runs
from flexmarl.store.data import tokenizers
from tests.support.system import System
from workers.child import IntervalLog
from workers.child_server import serve
from workers.models import tokenizer_json
from workers.models.tokenizer import Spoken
from workers.rollout.engines.requests import Finished, ReplyProgress, Request
from workers.rollout.engines.server import EngineServer
from workers.rollout.engines.tokenizers import Tokenizers
from workers.rollout.engines.wire import HeldVersion, Load
from workers.rollout.environments.base import Ask, Demonstration, Outcome, Reply
from workers.rollout.player import Player
from workers.vocabulary import Codec

RUN, TURNS, EPISODES, GROUPS = 1, 4, 8, 8
PIN = PolicyPin(version=1, digest="a" * 64)


class AnswersAtOnce:
    """The engine's protocol without a model: every request is answered in the next step, at full length."""

    rows = 256
    generated_tokens = prompt_tokens = 0

    def __init__(self, says: Sequence[int]) -> None:
        """`says`: ids that every reply repeats."""
        self._says = list(says)
        self._waiting: list[Request] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def busy_policies(self) -> list[str]:
        return ["talker"] if self._waiting else []

    def step_policy(self, policy: str) -> tuple[list[Finished], int]:
        taken, self._waiting = self._waiting, []
        return [Finished(r, self._reply(r), [-1.25] * r.max_tokens, "length", PIN.version) for r in taken], 0

    def _reply(self, request: Request) -> list[int]:
        return (self._says * -(-request.max_tokens // len(self._says)))[: request.max_tokens]

    def submit(self, requests: list[Request]) -> None:
        self._waiting += requests

    def abort(self, ids: set[str]) -> list[Finished]:
        return []

    def parts(self, told: Mapping[str, int]) -> list[ReplyProgress]:
        return []

    def depth(self) -> Load:
        return Load(len(self._waiting), 0)

    def holds(self) -> dict[str, HeldVersion]:
        return {"talker": HeldVersion(PIN.version, PIN.digest)}


class Talk:
    """One role talks `TURNS` times, a fixed number of tokens each."""

    roles = ("talker",)

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def vocabulary(self) -> tuple[str, ...]:
        return ("<pad>", "<bos>", "<eos>", "word")

    def make(self, task_seed: int, held_out: bool, rng: object) -> "Conversation":
        return Conversation(self.tokens)

    async def close(self) -> None:
        """End nothing: it scores by itself."""

    def demonstrations(self, rng: object, count: int) -> list[Demonstration]:
        return []


class Conversation:
    def __init__(self, tokens: int) -> None:
        self.tokens, self.turns = tokens, 0

    def asks(self) -> list[Ask]:
        return [Ask("talker", " ".join(["word"] * 16), self.tokens)] if self.turns < TURNS else []

    def act(self, replies: list[Reply]) -> None:
        self.turns += 1

    def outcome(self) -> Outcome:
        return Outcome({"talker": 1.0}, 1.0, True)

    def describe(self) -> dict[str, object]:
        return {"title": "talk", "facts": {}}


async def serve_engine(says: Sequence[int]) -> None:
    """The engine process: configuration from standard input like any child."""
    from workers.child_server import read_config

    config, intervals = read_config(), IntervalLog()
    answering = AnswersAtOnce(says)
    server = EngineServer(answering, lambda *_: None, config.incarnation, intervals, Tokenizers({}))  # type: ignore[arg-type]
    generating = asyncio.create_task(server.generate())
    await serve(config, server.routes(), intervals)
    generating.cancel()


def start_engine(home: Path, says: Sequence[int]) -> tuple[subprocess.Popen[bytes], str]:
    config = {
        "use": "engine", "run_id": RUN, "lease_id": 1, "fence": 1, "incarnation": "null-1", "device": "cpu",
        "threads": 1, "host": "127.0.0.1", "secret": "s", "home": str(home), "spec": {},
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, __file__, "engine", *map(str, says)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(config).encode() + b"\n")
    child.stdin.flush()
    return child, f"http://127.0.0.1:{json.loads(child.stdout.readline())['port']}"


SPEC = resolve(
    {
        "agents": {"guesser": {"policy": "talker"}, "hinter": {"policy": "talker"}},
        "environment": {"type": "hot_cold"},
        "batch": {"tasks_per_step": GROUPS, "episodes_per_task": EPISODES},
    }
)


def prepare(conn: psycopg.Connection, endpoint: str, spoken: Spoken) -> None:
    schema.apply(conn)
    runs.create_run(conn, RUN, SPEC.document, RunStatus.RUNNING)
    tokenizers.keep(conn, RUN, "talker", spoken.tokenizer, spoken.chat)
    conn.execute(
        "INSERT INTO store.node (name, address, incarnation) VALUES ('n', '127.0.0.1:1', 'i'); "
        "INSERT INTO store.device (id, node, kind, ordinal) VALUES ('n.cpu0', 'n', 'cpu', 0); "
        "INSERT INTO store.lease (device_id, run_id, use, incarnation, secret) "
        "VALUES ('n.cpu0', 1, 'engine', 'null-1', 's')"
    )
    conn.execute("UPDATE store.lease SET endpoint = %s", [endpoint])
    conn.execute(
        "INSERT INTO store.engine_policy (lease_id, incarnation, policy, version, digest) "
        "SELECT id, incarnation, 'talker', %s, %s FROM store.lease",
        [PIN.version, PIN.digest],
    )


def put_command(conn: psycopg.Connection, no: int) -> None:
    groups = tuple(GroupOrder(draw=no * GROUPS + i, task_seed=i, members=EPISODES) for i in range(GROUPS))
    body = PlayGroups(
        pool="default", epoch=1, origin=Origin.TRAIN, groups=groups, pins={"talker": PIN}, sampling_seed=1
    ).model_dump_json()
    conn.execute(
        "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, queue, body) "
        "VALUES (%s, %s, 1, 1, 'play_groups', 'broker', 'rollout.default', %s::jsonb)",
        [RUN, no, body],
    )


def cpu_seconds(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            times = one.cpu_times()
            total += times.user + times.system
    return total


async def play(url: str, conn: psycopg.Connection, tokens: int, commands: int, pids: list[int]) -> tuple[float, float]:
    """Return (CPU seconds of everything, of this process alone) for `commands` commands, after a warm-up."""
    with ConnectionPool(url, min_size=2, max_size=2, kwargs={"autocommit": True}) as pool:
        player = Player(pool)
        context = await player._open(RUN)
        stage = Talk(tokens) if context.renderers["talker"] is None else ChatTalk("talker", tokens, TURNS)
        context = replace(context, stage=stage)  # type: ignore[arg-type]
        agent = SPEC.spec.agents["guesser"].model_copy(update={"policy": "talker"})
        agent = agent.model_copy(update={"sampling": agent.sampling.model_copy(update={"max_tokens": tokens})})
        context.spec = SPEC.spec.model_copy(update={"agents": {"talker": agent}})
        player._contexts[RUN] = context
        first = conn.execute("SELECT coalesce(max(no), 0) + 1 FROM store.command").fetchone()[0]
        for no in range(first, first + commands + 1):
            put_command(conn, no)
        await player.play(RUN, first)
        everything, own = cpu_seconds(pids), time.process_time()
        await asyncio.gather(*(player.play(RUN, no) for no in range(first + 1, first + commands + 1)))
        spent = cpu_seconds(pids) - everything, time.process_time() - own
        await player.close()
    return spent


def control_shares(home: Path, steps: int) -> dict[str, float]:
    """CPU milliseconds per turn of the driver and of the node agent in a real run through all services."""
    with System(home) as system:
        api = system.api()
        budget = {"train_steps": steps, "target": None}
        run = api.create_run(name="platform cost", template="hot_cold", spec={"budget": budget})
        api.wait(run["id"], lambda r: r["step"] >= 2, 120)
        pids = {name: pid for name, pid in system.processes().items() if name in ("driver", "node")}
        before = {name: cpu_seconds([pid]) for name, pid in pids.items()}
        first = turns_of(system, run["no"])
        api.finish(run["id"], 600)
        made = turns_of(system, run["no"]) - first
        return {f"{name}_ms_per_turn": 1e3 * (cpu_seconds([pid]) - before[name]) / made for name, pid in pids.items()}


def turns_of(system: System, run_no: int) -> int:
    with psycopg.connect(system.database_url) as conn:
        row = conn.execute("SELECT coalesce(sum(turns), 0) FROM store.episode WHERE run_id = %s", [run_no]).fetchone()
        assert row is not None
        return int(row[0])


def main() -> None:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--model", type=Path, default=None, help="folder of a chat model; without it, a few words")

    report = start("platform_cost", "CPU milliseconds of the platform per turn", options)
    model = report.settings["model"]
    spoken_of = spoken(Path(str(model)).resolve()) if model else Spoken(tokenizer_json(Talk(1).vocabulary()))
    says = Codec(spoken_of.tokenizer).ids_of_text(TEXT) if model else [3]
    commands = 2 if report.quick else 12
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder:
        Path(folder).chmod(0o711)
        home = Home(Path(folder) / "home")
        home.prepare()
        postgres = EmbeddedPostgres(home)
        postgres.start()
        engine, endpoint = start_engine(home.root, says)
        try:
            with psycopg.connect(postgres.url, autocommit=True) as conn:
                prepare(conn, endpoint, spoken_of)
                pids = [psutil.Process().pid]  # the engine and PostgreSQL are children of this process
                turns = commands * GROUPS * EPISODES * TURNS
                for tokens in (16, 128, 512):
                    spent, own = asyncio.run(play(postgres.url, conn, tokens, commands, pids))
                    report.figures[f"cpu_ms_per_turn_{tokens}"] = 1e3 * spent / turns
                    report.figures[f"runner_ms_per_turn_{tokens}"] = 1e3 * own / turns
        finally:
            assert engine.stdin is not None
            engine.stdin.close()
            engine.wait(5)
            postgres.stop()
        report.figures |= control_shares(Path(folder) / "system", 6 if report.quick else 40)
    for tokens in (16, 128, 512):
        control = report.figures["driver_ms_per_turn"] + report.figures["node_ms_per_turn"]
        report.figures[f"total_ms_per_turn_{tokens}"] = report.figures[f"cpu_ms_per_turn_{tokens}"] + control
    report.settings |= {"turns_per_episode": TURNS, "episodes_per_group": EPISODES, "groups_per_command": GROUPS}
    report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        asyncio.run(serve_engine([int(said) for said in sys.argv[2:]]))
    else:
        main()
