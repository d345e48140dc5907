"""Re-derives a run from its log alone and compares: the same facts lead to the same commands and the same state.

Invariant: it only reads, in one snapshot, so it may be run on a living run. The log is replayed by this version's core:
a run that another version decided may differ without anything being wrong with it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import orjson
import zstandard
from psycopg import Connection

from flexmarl.contracts.commands import CutMicroBatch
from flexmarl.contracts.decisions import NumberedCommand
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator import Orchestrator
from flexmarl.store.control import reconciliation, runs
from flexmarl.store.control.runs import StoredRun

CHUNK = 2000
"""Events read and commands compared at a time."""
SHOWN = 10
"""Differences told; the first ones say most."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found. `differences` is empty when the log explains everything."""

    run_id: int
    status: RunStatus
    events: int
    commands: int
    snapshot_seq: int
    """Event after which the state was compared; 0 when no snapshot is stored."""
    differences: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    """What the task sampler believes of each task at the end of the log, in words."""


def replay(conn: Connection, run_id: int, tasks: bool = False) -> Replay:
    """Replay a run's whole log; `tasks`: say what is believed of each. Raises StoreError when there is no such run."""
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        stored = runs.load_run(conn, run_id)
        found: list[str] = []
        core = Orchestrator(ExperimentSpec.model_validate(stored.spec))
        commands = _derive(conn, stored, core, found)
        found += _ends(conn, stored, core)
    believed = tuple(_beliefs(core)) if tasks else ()
    first = tuple(islice(found, SHOWN))
    return Replay(run_id, stored.status, stored.seq, commands, stored.snapshot_seq, first, believed)


def _beliefs(core: Orchestrator) -> Iterator[str]:
    plan, belief = core.plan.tasks, core.state.choice.belief
    for task in range(plan.chosen_from):
        if words := plan.sampler.of_task(belief, task):
            yield f"task {task}: {words}"


def _derive(conn: Connection, stored: StoredRun, core: Orchestrator, found: list[str]) -> int:
    """Hand the core every fact of the log; note where it decides something else than was written down."""
    seq = commands = 0
    while seq < stored.seq and len(found) < SHOWN:
        entries = runs.events_after(conn, stored.run_id, seq, CHUNK)
        if [entry.seq for entry in entries] != list(range(seq + 1, seq + len(entries) + 1)) or not entries:
            found.append(f"the log has a gap behind event {seq}")
            break
        issued: list[tuple[int, NumberedCommand]] = []
        for entry in entries:
            issued += [(entry.seq, numbered) for numbered in core.handle(entry.event, entry.at).commands]
            if entry.seq == stored.snapshot_seq:
                found += _states(stored, core)
        found += _commands(conn, stored.run_id, issued)
        commands += len(issued)
        seq = entries[-1].seq
    return commands


def _commands(conn: Connection, run_id: int, issued: Iterable[tuple[int, NumberedCommand]]) -> Iterator[str]:
    wanted = {numbered.no: (seq, numbered) for seq, numbered in issued}
    rows = reconciliation.decided(conn, run_id, list(wanted))
    for no, (seq, numbered) in wanted.items():
        row, kind = rows.get(no), numbered.command.kind
        if row is None:
            yield f"event {seq} leads to command {no} ({kind}), which has no row"
        elif (row.kind, row.seq, row.epoch) != (kind, seq, numbered.epoch):
            was = f"{row.kind} of event {row.seq} in epoch {row.epoch}"
            yield f"command {no} is {was}, the log leads to {kind} of event {seq} in epoch {numbered.epoch}"
        elif (different := _first_difference(_body(numbered), orjson.loads(row.body))) is not None:
            yield f"command {no} ({kind}) differs at {different}"


def _body(numbered: NumberedCommand) -> Any:
    """Return a command as its row holds it: the samples of a cut are in the micro-batch's row."""
    cut = isinstance(numbered.command, CutMicroBatch)
    return orjson.loads(numbered.command.model_dump_json(exclude={"samples"} if cut else None))


def _states(stored: StoredRun, core: Orchestrator) -> Iterator[str]:
    assert stored.snapshot is not None
    kept = zstandard.decompress(stored.snapshot)
    derived = core.snapshot()
    if kept != derived:
        where = _first_difference(msgspec.json.decode(derived), msgspec.json.decode(kept)) or "the order of its parts"
        yield f"the state after event {stored.snapshot_seq} differs at {where}"


def _ends(conn: Connection, stored: StoredRun, core: Orchestrator) -> Iterator[str]:
    state = core.state
    for name, kept, derived in (
        ("status", stored.status.value, state.lifecycle.status.value),
        ("epoch", stored.epoch, state.lifecycle.epoch),
        ("step", stored.step, state.step),
        ("last command", reconciliation.read(conn, stored.run_id).last_command, state.numbers.command - 1),
    ):
        if kept != derived:
            yield f"{name} is {kept}, the log leads to {derived}"


def _first_difference(derived: Any, kept: Any, path: str = "") -> str | None:
    """Name the first place at which two JSON values differ, with both; None when they are equal."""
    if isinstance(derived, dict) and isinstance(kept, dict):
        parts: Iterable[Any] = [*derived, *(key for key in kept if key not in derived)]
        pairs = ((f"{path}/{part}", derived.get(part), kept.get(part)) for part in parts)
    elif isinstance(derived, list) and isinstance(kept, list) and len(derived) == len(kept):
        pairs = ((f"{path}/{i}", a, b) for i, (a, b) in enumerate(zip(derived, kept, strict=True)))
    else:
        same = derived == kept
        return None if same else f"{path or '/'}: {_short(kept)} is stored, the log leads to {_short(derived)}"
    return next((where for p, a, b in pairs if (where := _first_difference(a, b, p)) is not None), None)


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 120 else text[:117] + "..."
