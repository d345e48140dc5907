"""A project's pools in a specification: its default where none is named, and a refusal where it may not be."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flexmarl.contracts.problems import Problem, SpecProblems
from flexmarl.contracts.resolve import Resolved
from flexmarl.controlplane.inventory import queries as inventory

MEMBERS = ("rollout_pool", "training_pool")
BY_PROJECT = "project"
"""Source of a value that the project chose."""


def in_pools_of(project: str, found: Resolved, again: Callable[[Mapping[str, Any]], Resolved]) -> Resolved:
    """Complete a specification for a project. `again` resolves it with more laid over it.

    Raises SpecProblems where it names a pool that is bound to other projects.
    """
    pool = inventory.default_pool(project)
    open_members = [member for member in MEMBERS if found.sources.get(f"/resources/{member}") == "default"]
    if open_members and any(getattr(found.spec.resources, member) != pool for member in open_members):
        found = again({"resources": dict.fromkeys(open_members, pool)})
        chosen = {f"/resources/{member}": BY_PROJECT for member in open_members}
        found = replace(found, sources={**found.sources, **chosen})
    refused = [
        Problem(
            pointer=f"/resources/{member}",
            code="pool_closed",
            detail=f"Project {project} may not use {getattr(found.spec.resources, member)}.",
            hint=f"Use {pool}, or ask an admin to bind the project to it.",
        )
        for member in MEMBERS
        if not inventory.may_use(project, getattr(found.spec.resources, member))
    ]
    if refused:
        raise SpecProblems(refused)
    return found
