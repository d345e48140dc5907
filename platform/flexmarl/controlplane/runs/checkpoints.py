"""Checkpoints of a run: as people read them, and pinned or let go by them.

A pin outweighs every rule; what is pinned stays until nobody pins it. What is removed stays listed, with the reason.
"""

from typing import Any

from django.db import transaction

from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict, FieldError, NotFound, PermissionDenied
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.registry import queries as registered
from flexmarl.controlplane.registry.models import LanguageModel
from flexmarl.controlplane.runs import queries
from flexmarl.controlplane.runs.models import Checkpoint, Run
from flexmarl.store.control import checkpoint_rows
from flexmarl.store.data import lineage
from flexmarl.store.server_paths import without_paths

GONE = ("removing", "removed")


class CheckpointGone(Conflict):
    code = "checkpoint_gone"
    title = "The checkpoint was deleted"


def listed(run: Run) -> list[dict[str, Any]]:
    """List a run's checkpoints, newest first."""
    return [_row(run, one) for one in Checkpoint.objects.filter(run_id=run.no).order_by("-step")]


def one(run: Run, step: int) -> dict[str, Any]:
    """Return the checkpoint after a step. Raises NotFound."""
    return _row(run, find(run, step))


def find(run: Run, step: int) -> Checkpoint:
    """Return the row of the checkpoint after a step. Raises NotFound, naming those there are."""
    found = Checkpoint.objects.filter(run_id=run.no, step=step).first()
    if found is None:
        there = Checkpoint.objects.filter(run_id=run.no).exclude(state__in=GONE).order_by("-step")
        steps = ", ".join(str(number) for number in there.values_list("step", flat=True)[:10])
        raise NotFound(
            f"{run.key} has no checkpoint after step {step}; it has checkpoints after {steps or 'no step yet'}."
        )
    return found


@transaction.atomic
def pin(actor: Actor, run: Run, step: int, keep: bool) -> dict[str, Any]:
    """Pin a checkpoint, or leave it to the rules again. Raises CheckpointGone for one that is removed."""
    if not queries.may_edit(actor, run):
        raise PermissionDenied("Only the owner of a run and operators may pin its checkpoints.")
    before = find(run, step)
    if bool(before.pinned_at) != keep:
        if not checkpoint_rows.pin(store_connection(), run.no, step, actor.name if keep else None):
            raise gone(run, step)
        action = "checkpoint.pin" if keep else "checkpoint.unpin"
        record(actor, action, "run", run.id, run.key, project=run.project_id, step=step)
        live.announce_on_commit(live.run_topic(run.id), run.state.seq)
    return one(run, step)


def gone(run: Run, step: int) -> CheckpointGone:
    """Return the refusal of a checkpoint that was let go."""
    detail = f"The checkpoint of {run.key} after step {step} was deleted by retention; it was not pinned."
    hint = "Choose one that is complete; pin it to keep it."
    return CheckpointGone(detail, errors=[FieldError("/checkpoint", CheckpointGone.code, detail, hint)])


def lineage_of(actor: Actor, run: Run) -> dict[str, Any]:
    """Say which versions a run began with, which runs began with its own, and which models were made of its
    checkpoints, as far as the caller may see them."""
    conn = store_connection()
    origins, copies = lineage.origins(conn, run.no), lineage.copies(conn, run.no)
    numbers = {one.from_run for one in origins.values()} | {number for number, _ in copies}
    seen = {
        other.no: {"id": str(other.id), "key": other.key, "name": other.name, "web_url": f"/runs/{other.key}"}
        for other in queries.light(queries.runs(actor)).filter(no__in=numbers)
    }
    return {
        "origins": [_origin(one, seen.get(one.from_run), one.policy) for one in origins.values()],
        "copies": [_origin(one, seen[number], one.from_policy) for number, one in copies if number in seen],
        "models": [_made_of(model) for model in registered.language_models(actor).filter(from_run=run.no)],
    }


def _made_of(model: LanguageModel) -> dict[str, Any]:
    return {
        "id": str(model.id),
        "name": model.name,
        "revision": model.revision,
        "state": model.state,
        "step": model.from_step,
        "policy": model.source["policy"],
        "digest": model.digest,
        "url": f"/api/v1/models/{model.id}",
    }


def _origin(one: lineage.VersionOrigin, other: dict[str, str] | None, policy: str) -> dict[str, Any]:
    return {
        "policy": policy,
        "run": other,
        "other_policy": one.from_policy if policy == one.policy else one.policy,
        "version": one.from_version,
        "step": one.from_step,
        "checkpoint": one.checkpoint,
        "training_state": bool(one.state),
        "digest": one.digest,
    }


def _archive_url(run: Run, row: Checkpoint) -> str | None:
    """Return where a checkpoint is downloaded; None when its node does not have it whole."""
    there = row.node and row.state == "whole"
    return f"/api/v1/runs/{run.id}/checkpoints/{row.step}/archive" if there else None


def _row(run: Run, row: Checkpoint) -> dict[str, Any]:
    return {
        "label": row.label,
        "step": row.step,
        "versions": row.versions,
        "source": {"type": "checkpoint", "run": run.key, "step": row.step},
        "archive_url": _archive_url(run, row),
        "node": row.node,
        "size_bytes": row.bytes,
        "facts": row.facts,
        "state": row.state,
        "state_text": without_paths(row.state_text),
        "kept_by": [reason for reason in dict.fromkeys(row.kept_by) if reason != "new"],
        "pinned": row.pinned_at is not None,
        "pinned_by": row.pinned_by,
        "solved": row.solved,
        "team_score": row.team_score,
        "policies": {
            policy: {
                "version": part["version"], "digest": part["digest"], "training_state": bool(part["state"]),
            }
            for policy, part in sorted(row.parts.items())
        },
        "created_at": rfc3339(row.at),
    }  # fmt: skip


def forked_from(actor: Actor, run: Run) -> dict[str, Any] | None:
    """Return run (where it may be seen) and step whose weights a run began with; None for one that began anew."""
    one = next(iter(lineage.origins(store_connection(), run.no).values()), None)
    if one is None:
        return None
    other = queries.light(queries.runs(actor)).filter(no=one.from_run).first()
    return {"key": other.key if other else None, "step": one.from_step}
