"""What consumers of samples are sent by the store, in bytes by column, and what texts cost before rows are ready.

`python tests/benchmarks/consumer_reads.py --out FILE`: groups of eight members of a chat (four turns) and of a game of
closed words (one turn), in an embedded database. A trainer's node reads a micro-batch, a reward worker takes the task
of an episode, a list of trajectories shows one page, the page of a trajectory one. Needless for a trainer is what its
rows are made without (`workers.nodes.carrying_out`): of each turn finish, reward, engine and latency. `settle` is the
time of the transaction of a group with its texts, and in turns with it of one without.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
import psycopg

from flexmarl.contracts.commands import CutMicroBatch
from flexmarl.contracts.wire import CutSample, MicroBatchRef
from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.store import schema
from flexmarl.store.control.commands import Taken
from flexmarl.store.data import groups, micro_batches, rewards
from flexmarl.store.data.groups import SettledGroup
from flexmarl.store.data.rewards import RewardRequest
from flexmarl.store.data.spans import Span
from flexmarl.store.reads import episodes, trajectories
from flexmarl.store.reads.episodes import EpisodeFilter
from tests.support.column_reads import column_reads
from tests.support.store_story import Story

MEMBERS = 8
TOKENS = {"payload", "segment", "seg_offset", "digest"}
TEXT = "every word of a reply stands for about one token of it and four letters more or less"
WORDS = np.array(TEXT.split())


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one member: turns, tokens that each reads anew and says, and ids that may be said (0: all)."""

    turns: int
    read: int
    said: int
    allowed: int


SHAPES = {"chat": Shape(4, 512, 256, 0), "words": Shape(1, 12, 1, 8)}


def group_of(story: Story, taken: Taken, draw: int, shape: Shape, texts: bool) -> SettledGroup:
    """Make the rows of a group of a shape; without texts its episodes have none."""
    made, rng = story.group(draw, taken), np.random.default_rng(draw)
    said = [" ".join(rng.choice(WORDS, shape.said)) for _ in range(shape.turns)]
    transcript: list[object] = [["solver", turn] for turn in range(shape.turns)]
    rows = [
        replace(row, said=said if texts else [], transcript=transcript if texts else [], turns=shape.turns)
        for row in made.episodes
    ]
    engine = "box.cpu0:0123456789abcdef"
    spans = [Span(shape.read, shape.said, "stop", 0.0, engine, 1234.5678, turn) for turn in range(shape.turns)]
    sampled = shape.turns * shape.said
    samples = [
        replace(
            row, prompt=rng.integers(0, 50_000, shape.turns * shape.read, np.int32),
            response=rng.integers(0, 50_000, sampled, np.int32), logprobs=-rng.random(sampled, np.float32),
            allowed=tuple(range(shape.allowed)), segments=[0, sampled], spans=spans,
        )
        for row in made.samples
    ]  # fmt: skip
    return replace(made, episodes=rows, samples=samples)


def shares(read: Counter[str], rows: int) -> dict[str, float]:
    """Return bytes for each row, by column, the largest first."""
    return {name: round(size / rows, 1) for name, size in read.most_common() if size}


def needless(conn: psycopg.Connection, rows: int) -> float:
    """Return the bytes for each row that a trainer is sent of its turns and its rows are made without."""
    kept = [row[0] for row in conn.execute("SELECT spans FROM store.sample WHERE spans IS NOT NULL").fetchall()]
    sent = sum(len(json.dumps(spans)) for spans in kept)  # jsonb is sent as text
    needed = sum(len(json.dumps([[span[0], span[1], span[6], *span[7:]] for span in spans])) for spans in kept)
    return round((sent - needed) / rows, 1)


def read_by(story: Story, shape: Shape) -> dict[str, Any]:
    """Settle and cut a group, and let each consumer read it."""
    taken = story.take(story.play(0))
    settled = group_of(story, taken, 0, shape, texts=True)
    groups.put_groups(story.conn, taken, [settled])
    members = tuple(
        CutSample(draw=0, member=member, attempt=1, role="solver", turn=0, advantages=(0.5,) * shape.turns)
        for member in range(MEMBERS)
    )
    story.issue(CutMicroBatch(ref=MicroBatchRef(policy="solver", no=0), cohort=0, samples=members))
    body = msgspec.json.encode({"said": list(settled.episodes[0].said)}).decode()
    [number] = rewards.ask(story.conn, taken, [RewardRequest(0, 0, 1, body)])
    consumers: dict[str, tuple[int, Callable[[], object]]] = {
        "trainer, a row": (MEMBERS, lambda: micro_batches.read(story.conn, 1, "solver", 0)),
        "reward worker, an episode": (1, lambda: rewards.take(story.conn, 1, number, 30.0)),
        "list of trajectories, an episode": (MEMBERS, lambda: episodes.page(story.conn, 1, EpisodeFilter(), limit=50)),
        "page of a trajectory": (1, lambda: trajectories.episode(story.conn, 1, (0, 0, 1))),
    }
    found: dict[str, Any] = {}
    for name, (rows, read) in consumers.items():
        with column_reads(story.conn) as sent:
            read()
        found[name] = {"bytes": round(sum(sent.values()) / rows, 1), "columns": shares(sent, rows)}
    stored = story.conn.execute(
        "SELECT sum(octet_length(said) + octet_length(said_marks) + octet_length(transcript::text)) FROM store.episode"
    ).fetchone()
    assert stored is not None
    found["texts that a trainer is not sent, an episode"] = round(int(stored[0]) / MEMBERS, 1)
    found["needless for a trainer, a row"] = needless(story.conn, MEMBERS)
    return found


def settling(story: Story, shape: Shape, rounds: int) -> dict[str, float]:
    """Time the transaction of a group with texts and without, in turns; milliseconds of the median."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(1, 2 * rounds + 1):
        texts = number % 2 == 0
        taken = story.take(story.play(number))
        settled = group_of(story, taken, number, shape, texts)
        began = time.perf_counter()
        groups.put_groups(story.conn, taken, [settled])
        took[texts].append(1000 * (time.perf_counter() - began))
    with_texts, without = statistics.median(took[True]), statistics.median(took[False])
    return {"with_ms": round(with_texts, 2), "without_ms": round(without, 2)}


def measured(url: str, shape: Shape, rounds: int) -> dict[str, Any]:
    with psycopg.connect(url, autocommit=True) as conn:
        schema.apply(conn)
        story = Story(conn, members=MEMBERS).start()
        story.trainer("t1")
        return read_by(story, shape) | {"settle": settling(story, shape, rounds)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--rounds", type=int, default=40)
    given = asked.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="flexmarl-reads-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        server = EmbeddedPostgres(Home(folder / "home"))
        server.start()
        try:
            for shape, options in SHAPES.items():
                with psycopg.connect(server.url, autocommit=True) as admin:
                    admin.execute(f'CREATE DATABASE "{shape}"'.encode())
                found[shape] = measured(server.url_of(shape), options, given.rounds)
        finally:
            server.stop()
    given.out.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    print(given.out.read_text())


if __name__ == "__main__":
    main()
