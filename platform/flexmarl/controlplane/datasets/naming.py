"""Which version of a dataset a specification names: found with the rights of whoever submits, and pinned by digest."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification.dataset import NamedDataset
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.datasets import queries

SHOWN = 10
MOST = 2**31
"""Numbers of versions are below it."""
WHERE = "/environment/dataset"
PROGRAM = "program"
"""Environment whose tasks are rows only where it says so."""
OF_ROWS = ("dataset", "logged", "nemo_gym_url")
"""Environments whose tasks are rows."""


def named_in(environment: object) -> Mapping[str, Any] | None:
    """Return the dataset of an environment when it is named well enough to look for it; types refuse the rest."""
    if not isinstance(environment, Mapping) or environment.get("type", "dataset") not in (*OF_ROWS, PROGRAM):
        return None
    # A document that is laid over a template may leave the type to it; programs need no dataset.
    return well_named(environment.get("dataset", {} if environment.get("type") in OF_ROWS else None))


def well_named(named: object) -> Mapping[str, Any] | None:
    """Return what names a dataset when that is well enough to look for it, with an empty `name` where it has none;
    types refuse the rest."""
    if not isinstance(named, Mapping):
        return None
    name, version, project = named.get("name", ""), named.get("version"), named.get("project") or ""
    whole = version is None or (isinstance(version, int) and not isinstance(version, bool) and 0 < version < MOST)
    texts = all(isinstance(text, str) and "\0" not in text for text in (name, project))
    return {**named, "name": name} if whole and texts else None


def pinned(
    actor: Actor, project: str, named: Mapping[str, Any], where: str = WHERE
) -> dict[str, Any] | Problem:  # fmt: skip
    """Return a dataset with the version and digest that it stands for, or the refusal at a field.

    `project` is the run's. A dataset of a project that the submitter may not read is refused as if it did not exist.
    """
    name, number = named["name"], named.get("version")
    home = named.get("project") or project
    rows = queries.usable(actor, home, name)
    found = rows.first() if number is None else rows.filter(number=number).first()
    if found is not None:
        counts = {"training": found.training, "held_out": found.held_out}
        return {**named, "project": home, "version": found.number, "digest": found.digest, **counts}
    numbers = ", ".join(map(str, rows.values_list("number", flat=True)[:SHOWN]))
    if numbers:
        detail = f"{name} has no version {number}."
        return Problem(pointer=f"{where}/version", code="unknown_version", detail=detail, hint=f"It has {numbers}.")
    there = queries.datasets(actor).filter(project_id=home, archived_at__isnull=True)
    names = list(there.order_by("name").values_list("name", flat=True))
    if not name:
        hint = f"Name one: {', '.join(names[:SHOWN])}." if names else "Import one first, on the page of datasets."
        return Problem(pointer=f"{where}/name", code="required", detail="No dataset is named.", hint=hint)
    close = nearest(name, names)
    known = f"Did you mean {close}?" if close else f"It has {', '.join(names[:SHOWN])}." if names else ""
    detail = f"There is no dataset {name} in {home}, or you may not read it."
    hint = known or "Import it first, on the page of datasets."
    return Problem(pointer=f"{where}/name", code="unknown_dataset", detail=detail, hint=hint)


def gone(dataset: NamedDataset, where: str = WHERE) -> Problem:
    """Return the refusal of a pinned dataset that was archived, or closed to its reader, before its run was made."""
    detail = f"{dataset.name} {dataset.version} of {dataset.project} is not there any more, or you may not read it."
    hint = "Name another dataset, or restore it on its page and submit the run again."
    return Problem(pointer=f"{where}/name", code="unknown_dataset", detail=detail, hint=hint)


def with_tasks(environment: Mapping[str, Any], dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment with its dataset as it was pinned; tasks of a program are all rows unless it says less."""
    counts = {"tasks": dataset["training"], "held_out": dataset["held_out"]}
    own = {name: count for name, count in counts.items() if count} if environment.get("type") == PROGRAM else {}
    return {**own, **environment, "dataset": dataset}
