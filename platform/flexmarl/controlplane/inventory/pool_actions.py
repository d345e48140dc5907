"""Changes of pools, their bindings and quotas: permission, check, write, audit with before and after, hint."""

from collections.abc import Collection, Mapping
from typing import Any

from django.db import transaction
from pydantic import ValidationError

from flexmarl.contracts.problems import problems_of
from flexmarl.contracts.providers import PoolProvider
from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition
from flexmarl.controlplane.common.problems import Conflict, DuplicateName, FieldError, NotFound, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import queries
from flexmarl.controlplane.inventory.models import Device, Pool, ProjectPool
from flexmarl.store.control import pool_rules

MEMBERS = ("description", "note", "device_hour_price", "preemptible", "is_default", "provider")
"""What of a pool may be changed besides its bindings."""


@transaction.atomic
def create_pool(actor: Actor, name: str, projects: Collection[str] = (), **members: Any) -> Pool:
    """Describe a pool; with projects, for these alone."""
    actor.require(Scope.CLUSTER_ADMIN)
    _check_projects(projects)
    _check_provider(members)
    if Pool.objects.filter(name=name).exists():
        existing = Pool.objects.get(name=name)
        raise DuplicateName(f"There is a pool named {name}.", extra={"existing": str(existing.id)})
    if members.get("is_default"):
        _no_default()
    pool = Pool.objects.create(name=name, **members)
    pool_rules.bind(store_connection(), name, set(projects))
    pool_rules.set_price(store_connection(), name, pool.device_hour_price)
    _written(actor, "create", pool, None)
    return pool


@transaction.atomic
def update_pool(actor: Actor, name: str, precondition: Precondition, changes: Mapping[str, Any]) -> Pool:
    """Change a pool's description, note, bindings, or whether it is the installation's default.

    A project that loses its binding keeps what it runs there and gets no new device.
    """
    pool = _locked(actor, name, precondition)
    before = _facts(pool)
    if "projects" in changes:
        _check_projects(changes["projects"])
        pool_rules.bind(store_connection(), name, set(changes["projects"]))
    changes = dict(changes)
    _check_provider(changes)
    _check_access(pool, changes)
    if changes.get("is_default"):
        _no_default()
    for member in MEMBERS:
        if member in changes:
            setattr(pool, member, changes[member])
    _raise_version(pool)
    pool_rules.set_price(store_connection(), name, pool.device_hour_price)
    _written(actor, "update", pool, before)
    return pool


@transaction.atomic
def delete_pool(actor: Actor, name: str, precondition: Precondition) -> None:
    """Delete a pool that no device is in, with its bindings and quotas."""
    pool = _locked(actor, name, precondition)
    count = Device.objects.filter(pool=name).count()
    if count:
        raise Conflict(f"{count} devices are in {name}. Move them to another pool first.")
    if queries.has_jobs(name):
        raise Conflict(
            f"Hosts of {name} have jobs that have not ended. Set its provider to static and wait until they have."
        )
    before = _facts(pool)
    pool_rules.forget_pool(store_connection(), name)
    record(actor, "pool.delete", "pool", name, name, before=before)
    pool.delete()
    live.announce_on_commit(live.CLUSTER, 0)


@transaction.atomic
def set_quota(actor: Actor, pool: str, project: str, precondition: Precondition, devices: int | None) -> None:
    """Limit the devices of a pool that a project holds at once; None lifts the limit. What it holds stays."""
    actor.require(Scope.CLUSTER_ADMIN)
    # The pool's row is locked: a quota that does not exist yet has none of its own.
    if Pool.objects.select_for_update().filter(name=pool).first() is None:
        raise NotFound(f"Pool {pool} does not exist.")
    if not Project.objects.filter(name=project).exists():
        raise NotFound(f"Project {project} does not exist.")
    conn = store_connection()
    found = pool_rules.quota(conn, project, pool)
    precondition(found.version if found else 0)
    if devices is None and found is None:
        raise NotFound(f"Project {project} has no quota in {pool}.")
    if devices is None:
        pool_rules.drop_quota(conn, project, pool)
    else:
        pool_rules.set_quota(conn, project, pool, devices)
    record(
        actor,
        "quota.delete" if devices is None else "quota.set",
        "pool",
        pool,
        pool,
        quota_of=project,
        before=None if found is None else {"project": project, "devices": found.devices},
        after=None if devices is None else {"project": project, "devices": devices},
    )
    live.announce_on_commit(live.CLUSTER, 0)


@transaction.atomic
def set_project_pool(actor: Actor, project: str, pool: str | None) -> None:
    """Choose the pool that a project's runs take when they name none; None: the installation's."""
    actor.require(Scope.CLUSTER_ADMIN)
    home = Project.objects.filter(name=project).first()
    if home is None:
        raise NotFound(f"Project {project} does not exist.")
    found = None if pool is None else Pool.objects.filter(name=pool).first()
    if pool is not None and found is None:
        raise NotFound(f"Pool {pool} does not exist.")
    former = ProjectPool.objects.select_related("pool").filter(project=home).first()
    if found is None:
        ProjectPool.objects.filter(project=home).delete()
    else:
        ProjectPool.objects.update_or_create(project=home, defaults={"pool": found})
    record(
        actor,
        "project.default-pool",
        "project",
        project,
        project,
        project=project,
        before={"pool": former.pool.name if former else None},
        after={"pool": pool},
    )


def _locked(actor: Actor, name: str, precondition: Precondition) -> Pool:
    actor.require(Scope.CLUSTER_ADMIN)
    pool = Pool.objects.select_for_update().filter(name=name).first()
    if pool is None:
        raise NotFound(f"Pool {name} does not exist.")
    precondition(pool.version)
    return pool


def _no_default() -> None:
    """There is one default pool: another one's mark goes, and its version rises with it."""
    for former in Pool.objects.select_for_update().filter(is_default=True):
        former.is_default = False
        _raise_version(former)


def _raise_version(pool: Pool) -> None:
    pool.version += 1
    pool.save()


def _check_provider(members: dict[str, Any]) -> None:
    """Complete what is said of a provider. Raises ValidationProblem with every refusal."""
    if "provider" not in members:
        return
    given = {"provider": members["provider"]}
    try:
        members["provider"] = PoolProvider.model_validate(given).provider.model_dump(mode="json")
    except ValidationError as error:
        errors = [
            FieldError(one.pointer, one.code, one.detail, one.hint) for one in problems_of(error, PoolProvider, given)
        ]
        raise ValidationProblem(errors[0].detail, errors=errors) from error


def _check_access(pool: Pool, changes: Mapping[str, Any]) -> None:
    """Nodes with secrets and nodes with tokens share no pool. Raises Conflict while hosts of the other kind are there.

    The provider may be taken away at any time: its hosts are given back then.
    """
    now = changes.get("provider", {}).get("access")
    was = queries.accesses(pool.name) - {now}
    if now and was:
        raise Conflict(
            f"Hosts of {pool.name} with access {min(was)} have jobs that have not ended. Set its provider to static, "
            f"wait until they have, and set access to {now} then."
        )


def _check_projects(projects: Collection[str]) -> None:
    known = set(Project.objects.filter(name__in=projects).values_list("name", flat=True))
    for index, name in enumerate(projects):
        if name not in known:
            detail = f"Project {name} does not exist."
            raise ValidationProblem(detail, errors=[FieldError(f"/projects/{index}", "unknown_value", detail)])


def _written(actor: Actor, action: str, pool: Pool, before: dict[str, Any] | None) -> None:
    record(actor, f"pool.{action}", "pool", pool.name, pool.name, before=before, after=_facts(pool))
    live.announce_on_commit(live.CLUSTER, 0)


def _facts(pool: Pool) -> dict[str, Any]:
    bound = pool_rules.rules(store_connection()).bindings.get(pool.name, set())
    return {**{member: getattr(pool, member) for member in MEMBERS}, "projects": sorted(bound)}
