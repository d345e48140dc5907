"""The experience store's side of its benchmark: writers, readers and the janitor, each a process of its own.

They call the functions that rollout workers, nodes and the driver call: groups are put with the event that settles
them under a command's token, micro-batches are read and their gradients noted, steps apply them. A reader stacks the
arrays of a micro-batch to tensors and checksums every byte before it notes anything. As a node is pushed by the
driver, it is woken when there are commands for it.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import harness  # noqa: F401  (source roots)
import numpy as np
import psycopg
from store_rows import AGENTS, BATCH, TOKENS, agents_of, checksum, rows_of

from flexmarl.contracts.commands import Accumulate, OptimizerStep
from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, Origin, SampleRef, TrainStats
from flexmarl.store.control import commands
from flexmarl.store.control.commands import Taken
from flexmarl.store.data import groups, micro_batches, retention, steps
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.data.spans import Span

MEMBERS = 16
"""Episodes of a group; each has one turn of every agent."""
GROUPS_PER_PUT = BATCH // (MEMBERS * len(AGENTS))
DRAWS_PER_WRITER = 1_000_000
POLL_S = 0.5
"""A wake-up is a hint: who rests looks again after so long."""
TTL_S = 600.0


class Worker:
    """A process that answers requests, one after the other."""

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._hint = context.Event()
        self._process = context.Process(target=serve, args=(theirs, self._hint, *arguments), daemon=True)
        self._process.start()

    def ask(self, *request: Any) -> None:
        """Send a request; `answer` waits for its end."""
        self._pipe.send(request)

    def answer(self) -> Any:
        """Return the next answer; raises what the process raised."""
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def wake(self) -> None:
        """Hint that there is something to do."""
        self._hint.set()

    def stop(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join(10)


def _serve(pipe: Pipe, url: str, volatile: bool, handle: Callable[..., Any]) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        if volatile:
            conn.execute("SET synchronous_commit = off")
        while (request := pipe.recv()) is not None:
            try:
                pipe.send(handle(conn, *request))
            except Exception as error:  # the asking process must learn of it, whatever it is
                pipe.send(error)


def write(pipe: Pipe, hint: Event, url: str, volatile: bool, folder: Path | None, number: int) -> None:
    """Serve a writer: `("prepare", rows)` makes its groups, `("put", run)` puts them."""
    segments = None if folder is None else SegmentFolder(folder, durable=not volatile)
    made: dict[int, tuple[list[groups.SettledGroup], int]] = {}

    def handle(conn: psycopg.Connection, verb: str, value: int, rows: int) -> int:
        if rows not in made:
            made[rows] = _groups(number, rows)
        if verb == "put":
            taken = commands.take(conn, value, number + 1, TTL_S)
            assert taken is not None
            for first in range(0, len(made[rows][0]), GROUPS_PER_PUT):
                groups.put_groups(conn, taken, made[rows][0][first : first + GROUPS_PER_PUT], segments)
            commands.finish(conn, taken)
        return made[rows][1]

    _serve(pipe, url, volatile, handle)


def _groups(writer: int, rows: int) -> tuple[list[groups.SettledGroup], int]:
    arrays = [rows_of(writer, index, rows // len(AGENTS)) for index in range(len(AGENTS))]
    made = [
        _group(writer, group, [(ids[group * MEMBERS :], logprobs[group * MEMBERS :]) for ids, logprobs in arrays])
        for group in range(rows // (MEMBERS * len(AGENTS)))
    ]
    return made, sum(checksum(pair) for pair in arrays)


def _group(writer: int, number: int, arrays: list[Any]) -> groups.SettledGroup:
    draw = writer * DRAWS_PER_WRITER + number
    refs = tuple(SampleRef(role=agent, turn=0, tokens=TOKENS) for agent in AGENTS)
    outcomes = tuple(
        EpisodeOutcome(member=member, attempt=1, status=EpisodeStatus.FINISHED, scores={}, team_score=0.5, samples=refs)
        for member in range(MEMBERS)
    )
    event = GroupSettled(
        draw=draw, origin=Origin.TRAIN, epoch=1, command_no=writer + 1, episodes=outcomes, started_at=1.0,
        finished_at=2.0, versions=dict.fromkeys(AGENTS, 0),
    )  # fmt: skip
    transcript: list[object] = [[agent, 0] for agent in AGENTS]
    episodes = [
        groups.EpisodeRow(
            draw, member, 1, Origin.TRAIN, EpisodeStatus.FINISHED, "", {}, 0.5, False, len(AGENTS),
            len(AGENTS) * TOKENS, dict.fromkeys(AGENTS, 0), {"title": "row"}, transcript, 1.0, 2.0, 0,
        )
        for member in range(MEMBERS)
    ]  # fmt: skip
    samples = [
        groups.SampleRow(
            draw, member, 1, agent, 0, agent, 0, [0, TOKENS], [], ids[member], logprobs[member], [],
            [Span(0, TOKENS, "stop")],
        )
        for member in range(MEMBERS)
        for agent, (ids, logprobs) in zip(AGENTS, arrays, strict=True)
    ]  # fmt: skip
    return groups.SettledGroup(event, episodes, samples)


def read(pipe: Pipe, hint: Event, url: str, volatile: bool, number: int) -> None:
    """Serve a reader: `(lease, rows)` carries out the lease's commands until so many rows are applied."""
    import torch

    torch.set_num_threads(1)

    def handle(conn: psycopg.Connection, lease_id: int, rows: int) -> int:
        found, last = 0, rows // len(AGENTS) * len(agents_of(number))
        while last:
            hint.clear()
            following = commands.take_next(conn, lease_id, TTL_S)
            if following is None:
                hint.wait(POLL_S)
                continue
            taken = following.taken
            if isinstance(taken.command, Accumulate):
                found += _accumulate(conn, taken, taken.command)
            elif isinstance(taken.command, OptimizerStep):
                last -= _step(conn, taken, taken.command)
        return found

    _serve(pipe, url, volatile, handle)


def _accumulate(conn: psycopg.Connection, taken: Taken, order: Accumulate) -> int:
    import torch

    batch = micro_batches.read(conn, taken.run_id, order.policy, order.micro_batch)
    arrays = [row.arrays for row in batch.rows]
    ids = torch.from_numpy(np.stack([one.response_ids() for one in arrays]))
    logprobs = torch.from_numpy(np.stack([one.response_logprobs() for one in arrays]))
    found = checksum((ids.numpy(), logprobs.numpy()))
    stats = TrainStats(rows=len(arrays), z=float(len(arrays)))
    micro_batches.accumulated(conn, taken, order.policy, order.micro_batch, accumulator=order.accumulator, stats=stats)
    return found


def _step(conn: psycopg.Connection, taken: Taken, order: OptimizerStep) -> int:
    row = conn.execute(
        "SELECT sum(cardinality(advantages)) FROM store.micro_batch WHERE run_id = %s AND policy = %s AND no = ANY(%s)",
        [taken.run_id, order.policy, list(order.micro_batches)],
    ).fetchone()
    assert row is not None
    steps.commit_step(
        conn,
        taken,
        steps.StepRow(
            order.lease_id, order.policy, order.accumulator, order.micro_batches, order.next_version, "a" * 64, "",
            False, 0.5, 0.1, 0.01,
        ),
    )  # fmt: skip
    return int(row[0])


def tidy(pipe: Pipe, hint: Event, url: str, volatile: bool, folder: Path | None) -> None:
    """Serve the janitor: `(run,)` retires the run's samples and removes the files of their payloads."""
    segments = None if folder is None else SegmentFolder(folder)

    def handle(conn: psycopg.Connection, run_id: int) -> int:
        retired = retention.retire_samples(conn, run_id)
        if segments is not None:
            retention.collect(conn, segments)
        return retired.samples

    _serve(pipe, url, volatile, handle)
