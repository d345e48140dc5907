"""Which imported model a specification names: found with the rights of whoever submits, and pinned by digest."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.problems import Problem
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.registry import queries
from flexmarl.store.control import model_rows

SHOWN = 10


def pinned(actor: Actor, project: str, policy: str, named: Mapping[str, Any]) -> dict[str, Any] | Problem:
    """Return a policy's model with the version and digest that it stands for, or the refusal.

    `project` is the run's. A model of a project that the submitter may not read is refused as if it did not exist.
    """
    name, version = named["name"], named.get("version")
    home = named.get("project") or project
    where = f"/policies/{policy}/model"
    rows = queries.usable(actor, home, name)
    found = rows.first() if version is None else rows.filter(revision=version).first()
    if found is not None:
        memory = model_rows.largest_memory(store_connection())
        if 0 < memory < found.facts["bytes"]:
            detail = f"The weights of {name} {found.revision} take {found.facts['bytes'] / 1e9:.2f} GB, and no host has"
            hint = f"The largest host has {memory / 1e9:.2f} GB of memory: add a larger one, or name another model."
            return Problem(pointer=where, code="too_large", detail=f"{detail} so much memory.", hint=hint)
        own = {"project": home, "version": found.revision, "digest": found.digest}
        return {**named, **own, "parameters": found.facts["parameters"], "shape": found.facts.get("shape") or None}
    versions = ", ".join(map(str, rows.values_list("revision", flat=True)[:SHOWN]))
    if version is not None and versions:
        detail = f"{name} has no version {version} that runs may name."
        return Problem(pointer=f"{where}/version", code="unknown_version", detail=detail, hint=f"It has {versions}.")
    detail = f"There is no imported model {name} in {home}, or you may not read it."
    hint = "Import it first: POST /api/v1/models, and wait until its state is done."
    return Problem(pointer=f"{where}/name", code="unknown_model", detail=detail, hint=hint)
