"""What a policy's warm-up learns from, conversations or imported rows, is read by its node: the trainer has no way to
the database.

Invariants: rows count only when they are those of the digest that the run pinned, and held-out ones are never sent. A
warm-up of so many steps is sent no more rows than it has places for, the first of an order that depends on the run's
seed alone.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import psycopg

from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.row_files import ImportedRow, RowLine
from flexmarl.contracts.row_order import row_of
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.demonstrations import ImportedRows, SupervisedWarmup
from flexmarl.store.control import runs
from flexmarl.store.data import dataset_contents
from workers.errors import ChildRefused
from workers.rollout.datasets import DatasetMissing, checked
from workers.training.wire import BindRequest

MOST_BYTES = 128 * 2**20
"""Of the rows of a request."""
_kept = msgspec.msgpack.Decoder(ImportedRow)
_said = msgspec.json.Decoder(RowLine)


def with_demonstrations(conn: psycopg.Connection, run_id: int, request: BindRequest) -> BindRequest:
    """Return a request for version 0 with the rows that its warm-up may use. Raises ChildRefused."""
    written = runs.load_spec(conn, run_id)
    if not _demonstrates(written, request.policy):
        return request
    spec = ExperimentSpec.model_validate(written)
    warmup = spec.policies[request.policy].warmup
    assert warmup is not None
    if warmup.rows is not None:
        lines = _imported(conn, warmup.rows, spec.roles_of(request.policy))
    else:
        assert warmup.demonstrations is not None
        dataset = warmup.demonstrations.dataset
        lines = _lines(conn, f"{dataset.name} {dataset.version}", dataset.digest)
    return msgspec.structs.replace(request, demonstrations=chosen(lines, warmup, seed_of(spec, request.policy)))


def _demonstrates(spec: Mapping[str, Any], policy: str) -> bool:
    """Tell whether a specification names demonstrations for a policy; all else of it is read where it does."""
    warmup = ((spec.get("policies") or {}).get(policy) or {}).get("warmup")
    return bool(warmup and (warmup.get("demonstrations") or warmup.get("rows")))


def _lines(conn: psycopg.Connection, name: str, digest: str) -> tuple[bytes, ...]:
    try:
        return checked(digest, dataset_contents.lines(conn, digest)).training
    except DatasetMissing as missing:
        raise ChildRefused("no_demonstrations", f"{name}: {missing}", 422) from missing


def _imported(conn: psycopg.Connection, shown: ImportedRows, roles: Collection[str]) -> tuple[bytes, ...]:
    """Return the imported rows of some roles that are to be learned."""
    lines = _lines(conn, shown.name, shown.digest)
    found = tuple(line for line in lines if _wanted(_said.decode(_kept.decode(line).line), shown, roles))
    if not found:
        solved = ", solved the task" if shown.solved else ""
        scored = f", scored at least {shown.least_score:g}" if shown.least_score is not None else ""
        wanted = f"are of {', '.join(sorted(roles))}{solved}{scored}"
        detail = f"warmup.rows: of {len(lines)} rows of {shown.name} none {wanted}; lower what they must have"
        raise ChildRefused("no_demonstrations", detail, 422)
    return found


def _wanted(line: RowLine, shown: ImportedRows, roles: Collection[str]) -> bool:
    good = shown.least_score is None or line.scores.get(line.role, line.team_score) >= shown.least_score
    return good and line.role in roles and (line.solved or not shown.solved)


def seed_of(spec: ExperimentSpec, policy: str) -> int:
    """Return what the order of a policy's demonstrations depends on."""
    return derive(spec.seed, "warmup", policy)


def chosen(lines: tuple[bytes, ...], warmup: SupervisedWarmup, seed: int) -> list[bytes]:
    """Return the rows that a warm-up has places for. Raises ChildRefused where they are too many for a request."""
    places = warmup.steps * warmup.batch_size
    picked = list(lines)
    if places < len(lines):
        picked = [lines[row_of(draw, len(lines), seed)] for draw in range(places)]
    if (size := sum(map(len, picked))) > MOST_BYTES:
        detail = f"its {len(picked)} rows have {size} bytes; {MOST_BYTES} are legal: set fewer steps or batch_size"
        raise ChildRefused("too_many_demonstrations", detail, 422)
    return picked
