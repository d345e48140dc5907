"""What a policy's warm-up learns from is read by its node: the trainer has no way to the database.

Invariants: rows count only when they are those of the digest that the run pinned, and held-out ones are never sent. A
warm-up of so many steps is sent no more rows than it has places for, the first of an order that depends on the run's
seed alone.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import psycopg

from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.demonstrations import SupervisedWarmup
from flexmarl.language.dataset_rows import row_of
from flexmarl.store.control import runs
from flexmarl.store.data import dataset_contents
from workers.errors import ChildRefused
from workers.rollout.datasets import DatasetMissing, checked
from workers.training.wire import BindRequest

MOST_BYTES = 128 * 2**20
"""Of the rows of a request."""


def with_demonstrations(conn: psycopg.Connection, run_id: int, request: BindRequest) -> BindRequest:
    """Return a request for version 0 with the rows that its warm-up may use. Raises ChildRefused."""
    written = runs.load_spec(conn, run_id)
    if not _demonstrates(written, request.policy):
        return request
    spec = ExperimentSpec.model_validate(written)
    warmup = spec.policies[request.policy].warmup
    assert warmup is not None
    assert warmup.demonstrations is not None
    dataset = warmup.demonstrations.dataset
    try:
        lines = checked(dataset.digest, dataset_contents.lines(conn, dataset.digest)).training
    except DatasetMissing as missing:
        raise ChildRefused("no_demonstrations", f"{dataset.name} {dataset.version}: {missing}", 422) from missing
    return msgspec.structs.replace(request, demonstrations=chosen(lines, warmup, seed_of(spec, request.policy)))


def _demonstrates(spec: Mapping[str, Any], policy: str) -> bool:
    """Tell whether a specification names demonstrations for a policy; all else of it is read where it does."""
    warmup = ((spec.get("policies") or {}).get(policy) or {}).get("warmup")
    return bool(warmup and warmup.get("demonstrations"))


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
