"""Labels that people put on trajectories: read for lists, set and taken away with an audit row.

A person has one label per trajectory; setting it again replaces it. Whether the episode exists is the caller's to know.
"""

import re
from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import Q

from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, NotFound, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import Run, TrajectoryLabel
from flexmarl.controlplane.runs.models.label import MAX_COMMENT, MAX_LABEL

Key = tuple[int, int, int]
ANY = "any"
MOST_KEYS = 2000
"""Newest labelled trajectories that a filter by label considers."""
_WORD = re.compile(r"[a-z0-9][a-z0-9 _-]*")


def of(run: Run, keys: Sequence[Key]) -> dict[Key, list[dict[str, Any]]]:
    """Return the labels of some episodes, oldest first."""
    if not keys:
        return {}
    draws = {key[0] for key in keys}
    found: dict[Key, list[dict[str, Any]]] = {}
    for row in TrajectoryLabel.objects.filter(run=run, draw__in=draws):
        found.setdefault((row.draw, row.member, row.attempt), []).append(label_row(row))
    return {key: rows for key, rows in found.items() if key in set(keys)}


def keys(run: Run, label: str) -> list[Key]:
    """Return the episodes with a label, the newest draws at most."""
    rows = TrajectoryLabel.objects.filter(run=run).filter(Q() if label == ANY else Q(label=label))
    listed = rows.order_by("-draw", "-member").values_list("draw", "member", "attempt").distinct()[:MOST_KEYS]
    return [(draw, member, attempt) for draw, member, attempt in listed]


def words(run: Run) -> list[str]:
    """List the labels in use."""
    return sorted(TrajectoryLabel.objects.filter(run=run).order_by().values_list("label", flat=True).distinct()[:50])


@transaction.atomic
def put(actor: Actor, run: Run, key: Key, label: str, comment: str = "") -> dict[str, Any]:
    """Set the caller's label of an episode. Raises PermissionDenied, or ValidationProblem naming a legal label."""
    actor.require(Scope.RUNS_WRITE, run.project_id)
    word = " ".join(label.lower().split())
    if not _WORD.fullmatch(word) or len(word) > MAX_LABEL or word == ANY:
        raise _refuse(
            "/label", f"A label has 1 to {MAX_LABEL} letters, digits, spaces, - or _, such as good or reward bug."
        )
    if len(comment) > MAX_COMMENT:
        raise _refuse("/comment", f"A comment has at most {MAX_COMMENT} characters.")
    place = dict(zip(("draw", "member", "attempt"), key, strict=True))
    old = TrajectoryLabel.objects.select_for_update().filter(run=run, author_name=actor.name, **place).first()
    row = old or TrajectoryLabel(run=run, author_name=actor.name, author_id=actor.user_id, **place)
    before = None if old is None else {"label": old.label, "comment": old.comment}
    row.label, row.comment = word, comment.strip()
    row.version += old is not None
    row.save()
    after = {"label": row.label, "comment": row.comment}
    _audit(actor, run, "trajectory.label", key, before, after)
    return label_row(row)


@transaction.atomic
def remove(actor: Actor, run: Run, key: Key) -> None:
    """Take the caller's label away. Raises NotFound when there is none."""
    actor.require(Scope.RUNS_WRITE, run.project_id)
    draw, member, attempt = key
    row = TrajectoryLabel.objects.filter(
        run=run, author_name=actor.name, draw=draw, member=member, attempt=attempt
    ).first()
    if row is None:
        raise NotFound(f"You have not labelled {_name(run, key)}.")
    before = {"label": row.label, "comment": row.comment}
    row.delete()
    _audit(actor, run, "trajectory.unlabel", key, before, None)


def label_row(row: TrajectoryLabel) -> dict[str, Any]:
    """Return a label as JSON values."""
    return {
        "label": row.label,
        "comment": row.comment,
        "author": row.author_name,
        "at": rfc3339(row.updated_at),
    }


def _audit(
    actor: Actor, run: Run, action: str, key: Key, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> None:
    target = "-".join(map(str, key))
    record(
        actor, action, "trajectory", f"{run.id}/{target}", _name(run, key),
        project=run.project_id, before=before, after=after,
    )  # fmt: skip


def _name(run: Run, key: Key) -> str:
    return f"{run.key} {'-'.join(map(str, key))}"


def _refuse(pointer: str, detail: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(pointer, "out_of_range", detail)])
