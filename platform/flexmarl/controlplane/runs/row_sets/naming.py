"""Which imported rows a run names, for a warm-up or an archive: found with the rights of whoever submits, and pinned by
digest."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.row_files import game_of
from flexmarl.contracts.specification.demonstrations import ImportedRows, NamedRows
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.runs.models import RowSet
from flexmarl.controlplane.runs.row_sets import queries

SHOWN = 10


def pinned(actor: Actor, project: str, where: str, named: object) -> dict[str, Any] | Problem | None:
    """Return named rows with the digest that they stand for, or the refusal; None where types refuse them. `where` is
    the pointer of what names them."""
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
    return Problem(pointer=f"{where}/name", code="unknown_rows", detail=detail, hint=hint)


def refusals(actor: Actor, spec: ExperimentSpec, policy: str, shown: ImportedRows) -> Iterator[Problem]:
    """Refuse rows of another environment or of other roles than the policy plays, and those that are all filtered out;
    make sure that the digest is the one that was found here."""
    where, roles = warmup_at(policy), spec.roles_of(policy)
    found = there(actor, spec, where, shown, roles, f"the roles of the policy {policy}")
    if isinstance(found, Problem):
        yield found
    elif shown.solved and not sum(found.roles[role]["solved"] for role in roles if role in found.roles):
        detail = f"No episode of {shown.name} solved its task, and only rows of those that did are learned."
        yield Problem(pointer=f"{where}/solved", code="no_rows", detail=detail, hint="Set false.")


def there(
    actor: Actor, spec: ExperimentSpec, where: str, named: NamedRows, roles: Collection[str], whose: str
) -> RowSet | Problem:
    """Return the rows that a run names, or why it may not: they are gone, of another game or of other roles. Raises
    AssertionError where the digest is not the one that was found here."""
    found = queries.usable(actor, named.project).filter(name=named.name).first()
    if found is None:
        detail = f"The imported rows {named.name} are not there any more, or you may not read them."
        hint = "Name others, or import them again."
        return Problem(pointer=f"{where}/name", code="unknown_rows", detail=detail, hint=hint)
    if not named.digest or found.digest != named.digest:
        raise AssertionError(f"{where[1:].replace('/', '.')} was not completed")
    mine, theirs = game_of(spec.environment.model_dump(mode="json")), game_of(found.environment)
    if theirs != mine:
        detail = f"{named.name} has rows of {theirs}, and this run plays {mine}."
        hint = f"Name rows of {mine}, or play {theirs}."
        return Problem(pointer=f"{where}/name", code="other_environment", detail=detail, hint=hint)
    if not found.roles.keys() & roles:
        detail = f"{named.name} has no rows of {', '.join(roles)}, {whose}."
        hint = f"It has rows of {', '.join(sorted(found.roles))}."
        return Problem(pointer=f"{where}/name", code="other_roles", detail=detail, hint=hint)
    return found


def warmup_at(policy: str) -> str:
    """Return where a policy's warm-up names rows."""
    return f"/policies/{policy}/warmup/rows"
