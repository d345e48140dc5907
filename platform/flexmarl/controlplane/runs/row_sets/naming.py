"""Which imported rows a policy is warmed up on: found with the rights of whoever submits, and pinned by digest."""

from collections.abc import Iterator, Mapping
from typing import Any

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.row_files import game_of
from flexmarl.contracts.specification.demonstrations import ImportedRows
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.runs.row_sets import queries

SHOWN = 10


def pinned(actor: Actor, project: str, policy: str, named: object) -> dict[str, Any] | Problem | None:
    """Return `warmup.rows` with the digest that it stands for, or the refusal; None where types refuse it."""
    if not isinstance(named, Mapping) or not all(isinstance(named.get(one, ""), str) for one in ("name", "project")):
        return None
    name, home = named.get("name", ""), named.get("project") or project
    if not name or "\0" in f"{name}{home}":
        return None
    found = queries.usable(actor, home).filter(name=name).first()
    if found is not None:
        tokenizers = {role: rows["tokenizer"] for role, rows in found.roles.items()}
        return {**named, "project": home, "digest": found.digest, "tokenizers": tokenizers}
    names = list(queries.usable(actor, home).order_by("name").values_list("name", flat=True))
    close = nearest(name, names)
    known = f"Did you mean {close}?" if close else f"It has {', '.join(names[:SHOWN])}." if names else ""
    detail = f"There are no imported rows {name} in {home}, or you may not read them."
    hint = known or "Import them first, on the page of datasets."
    return Problem(pointer=f"{_where(policy)}/name", code="unknown_rows", detail=detail, hint=hint)


def refusals(actor: Actor, spec: ExperimentSpec, policy: str, shown: ImportedRows) -> Iterator[Problem]:
    """Refuse rows of another environment or of other roles than the policy plays, and those that are all filtered out;
    make sure that the digest is the one that was found here."""
    found = queries.usable(actor, shown.project).filter(name=shown.name).first()
    if found is None:
        detail = f"The imported rows {shown.name} are not there any more, or you may not read them."
        hint = "Name others, or import them again."
        yield Problem(pointer=f"{_where(policy)}/name", code="unknown_rows", detail=detail, hint=hint)
        return
    if not shown.digest or found.digest != shown.digest:
        raise AssertionError(f"policies.{policy}.warmup.rows was not completed")
    where, mine = f"{_where(policy)}/name", game_of(spec.environment.model_dump(mode="json"))
    theirs = game_of(found.environment)
    if theirs != mine:
        detail = f"{shown.name} has rows of {theirs}, and this run plays {mine}."
        hint = f"Name rows of {mine}, or play {theirs}."
        yield Problem(pointer=where, code="other_environment", detail=detail, hint=hint)
        return
    roles = spec.roles_of(policy)
    there = [found.roles[role] for role in roles if role in found.roles]
    if not there:
        detail = f"{shown.name} has no rows of {', '.join(roles)}, the roles of the policy {policy}."
        hint = f"It has rows of {', '.join(sorted(found.roles))}."
        yield Problem(pointer=where, code="other_roles", detail=detail, hint=hint)
    elif shown.solved and not sum(one["solved"] for one in there):
        detail = f"No episode of {shown.name} solved its task, and only rows of those that did are learned."
        yield Problem(pointer=f"{_where(policy)}/solved", code="no_rows", detail=detail, hint="Set false.")


def _where(policy: str) -> str:
    return f"/policies/{policy}/warmup/rows"
