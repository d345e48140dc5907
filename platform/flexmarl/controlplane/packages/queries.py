"""What others read of packages, as plain values; and which ones a specification may name."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.packages.filters import OPEN
from flexmarl.controlplane.packages.models import Package


def packages(actor: Actor) -> QuerySet[Package]:
    """The packages of projects that the caller may read runs of, newest first."""
    return in_reach(Package.objects.all(), actor, Scope.RUNS_READ, "project")


def listed(actor: Actor) -> QuerySet[Package]:
    """The same without what only the page of one shows."""
    return packages(actor).defer("log", "lock")


def find_package(actor: Actor, reference: UUID) -> Package:
    """Return a package. Raises NotFound, also when the caller may not know of it."""
    found = packages(actor).filter(pk=reference).first()
    if found is None:
        raise NotFound("There is no such package.")
    return found


def usable(actor: Actor) -> QuerySet[Package]:
    """The packages that a run of the caller may name, newest first."""
    return packages(actor).filter(state="ready", archived_at__isnull=True)


def versions(actor: Actor, package: Package) -> QuerySet[Package]:
    """The builds of a package's name in its project, newest first."""
    return listed(actor).filter(project=package.project, name=package.name)


def allowed_actions(package: Package) -> list[str]:
    """List what its state allows."""
    if package.state in OPEN:
        return ["cancel"]
    return ["restore"] if package.archived_at else ["archive"]


def package_row(package: Package) -> dict[str, Any]:
    """Return a package as a row of a list."""
    return {
        "id": str(package.id),
        "project": package.project,
        "name": package.name,
        "release": package.release,
        "source": package.source,
        "owner": package.owner or None,
        "state": package.state,
        "reason": package.reason,
        "reason_text": package.reason_text,
        "now": package.now_at,
        "digest": package.digest,
        "environments": len(package.manifest.get("environments", ())),
        "allowed_actions": allowed_actions(package),
        "archived_at": rfc3339(package.archived_at),
        "created_at": rfc3339(package.created_at),
        "updated_at": rfc3339(package.updated_at),
        "started_at": rfc3339(package.started_at),
        "finished_at": rfc3339(package.finished_at),
        "version": package.version,
        "url": f"/api/v1/packages/{package.id}",
    }


def package_detail(package: Package) -> dict[str, Any]:
    """Return a package with its manifest, what was installed, and the log of its build."""
    more = {"manifest": package.manifest, "lock": package.lock, "log": package.log, "node": package.node}
    return {**package_row(package), **more}
