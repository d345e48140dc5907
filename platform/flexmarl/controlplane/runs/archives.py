"""Downloads of checkpoints from the node that has the folder, which is held while somebody reads it."""

from dataclasses import dataclass
from functools import partial

from flexmarl.controlplane.common.archives import ArchiveReady, ArchiveStream, NodeCannot
from flexmarl.controlplane.common.archives import prepare as prepare_on
from flexmarl.controlplane.common.problems import Conflict
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import checkpoints
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.control import checkpoint_rows

HELD_S = checkpoint_rows.READ_S / 4


class CheckpointDamaged(Conflict):
    code = "checkpoint_damaged"
    title = "The checkpoint's folder is damaged"


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    step: int
    policy: str = ""
    form: str = ""
    """`adapter` or `merged`; empty: as it lies there."""


def prepare(run: Run, wanted: ArchiveRequest) -> ArchiveReady:
    """Have an archive made ready. Raises CheckpointGone, CheckpointDamaged, ValidationProblem or NodeAway."""
    row = checkpoints.find(run, wanted.step)
    if not row.node:
        detail = f"The node of the checkpoint after step {wanted.step} is unknown."
        raise CheckpointDamaged(detail, extra={"reason": "unknown_node"})
    if not checkpoint_rows.read_on(store_connection(), run.no, wanted.step):
        raise checkpoints.gone(run, wanted.step)
    path = f"/v1/checkpoints/{run.no}/{wanted.step}/archive"
    try:
        return prepare_on(row.node, path, {"policy": wanted.policy, "form": wanted.form})
    except NodeCannot as cannot:
        raise CheckpointDamaged(f"{cannot.detail}.", extra={"reason": cannot.code}) from cannot


def stream(run: Run, step: int, ready: ArchiveReady) -> ArchiveStream:
    """Return the bytes of an archive of a checkpoint's folder, which is held until the last of them."""
    return ArchiveStream(ready, partial(_hold, run.no, step), HELD_S)


def _hold(run_no: int, step: int) -> None:
    checkpoint_rows.read_on(store_connection(), run_no, step)
