"""Changes of packages: permission, check, write, audit. Nodes build what is asked for here."""

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from pydantic import TypeAdapter, ValidationError

from flexmarl.contracts.package_manifests import (
    ENDINGS,
    PackageRequirement,
    PackageSource,
    PackageUpload,
    file_names,
    normal_name,
)
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import (
    FieldError,
    InvalidState,
    PayloadTooLarge,
    RateLimited,
    ValidationProblem,
)
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.value_errors import field_error
from flexmarl.controlplane.packages import queries
from flexmarl.controlplane.packages.filters import OPEN, SOURCES
from flexmarl.controlplane.packages.models import Package
from flexmarl.store.control import package_rows

MOST_OPEN = 20
"""Builds of a project that wait or run."""
_SOURCE: TypeAdapter[PackageRequirement | PackageUpload] = TypeAdapter(PackageSource)
_READ = 2**20


class FileBody(Protocol):
    """What is read of a request."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""


@transaction.atomic
def upload(actor: Actor, *, project: str, name: str, body: FileBody) -> dict[str, Any]:
    """Keep a wheel or a source distribution. Raises ValidationProblem, PayloadTooLarge."""
    actor.require(Scope.PACKAGES_WRITE, project)
    _check_project(project, "project", "query")
    if file_names(name) is None or "/" in name or len(name) > 200:
        detail = f"{name[:80]} is not named like a wheel or a source distribution."
        hint = f"Upload NAME-VERSION-...-any.whl or NAME-VERSION.tar.gz; legal endings: {', '.join(ENDINGS)}."
        raise ValidationProblem(detail, errors=[FieldError("name", "unknown_format", detail, hint, "query")])
    held = bytearray()
    while piece := body.read(_READ):
        held += piece
        if len(held) > settings.MOST_PACKAGE_BYTES:
            raise PayloadTooLarge(f"At most {settings.MOST_PACKAGE_BYTES} bytes (FLEXMARL_MOST_PACKAGE_MIB).")
    digest = hashlib.sha256(held).hexdigest()
    conn = store_connection()
    package_rows.drop_unused(conn, settings.UPLOADS_HOURS)
    package_rows.put_file(conn, digest, bytes(held))
    record(
        actor, "package.upload", "package_file", digest, name, project=project, after={"bytes": len(held)}
    )  # fmt: skip
    return {"file": name, "digest": digest, "bytes": len(held)}


@transaction.atomic
def build(actor: Actor, *, source: Mapping[str, Any], project: str = DEFAULT_PROJECT) -> Package:
    """Ask for a build. Raises ValidationProblem with every refusal."""
    actor.require(Scope.PACKAGES_WRITE, project)
    _check_project(project, "/project", "body")
    wanted = _read(source)
    if isinstance(wanted, PackageUpload) and not package_rows.has_file(store_connection(), wanted.digest):
        detail, hint = f"There is no uploaded file {wanted.digest[:12]}.", "Upload it: POST /api/v1/packages/files."
        raise ValidationProblem(detail, errors=[FieldError("/source/digest", "unknown_file", detail, hint)])
    waiting = Package.objects.filter(project=project, state__in=OPEN).count()
    if waiting >= MOST_OPEN:
        detail = f"{waiting} builds of {project} are waiting or running. Cancel one, or try again later."
        raise RateLimited(detail, headers={"Retry-After": "30"})
    made, owner, named = uuid7(), (actor.name, str(actor.user_id or "")), _named(wanted)
    asked = wanted.model_dump(mode="json")
    package_rows.create(store_connection(), made, project, named, asked, owner)
    record(actor, "package.build", "package", made, "@".join(named), project=project, after={"source": asked})
    return queries.find_package(actor, made)


def _named(source: PackageRequirement | PackageUpload) -> tuple[str, str]:
    """Return distribution and version that a source names."""
    if isinstance(source, PackageRequirement):
        name, _, version = source.requirement.partition("==")
        return normal_name(name.partition("[")[0]), version
    named = file_names(source.file)
    if named is None:
        detail = f"{source.file} is not named like a wheel or a source distribution."
        hint = f"Legal endings: {', '.join(ENDINGS)}."
        raise ValidationProblem(detail, errors=[FieldError("/source/file", "unknown_format", detail, hint)])
    return named


def _read(source: Mapping[str, Any]) -> PackageRequirement | PackageUpload:
    kind = source.get("type")
    if kind not in SOURCES:
        detail = f"{kind} is not a type of source." if kind else "type is required."
        hint = f"Legal: {', '.join(SOURCES)}."
        code = "unknown_value" if kind else "required"
        raise ValidationProblem(detail, errors=[FieldError("/source/type", code, detail, hint)])
    try:
        return _SOURCE.validate_python(dict(source))
    except ValidationError as error:
        errors = [_as_field_error(one) for one in error.errors()]
        raise ValidationProblem(errors[0].detail, errors=errors) from error


HINTS = {
    "requirement": "Pin one version: textarena==0.7.4, or with extras gymnasium[toy-text]==1.3.0.",
    "entry": "Write it like my_package.games:Maze, or leave it empty.",
    "file": "The file's own name: my_game-1.0-py3-none-any.whl.",
    "digest": "SHA-256 of the uploaded file, 64 hexadecimal digits.",
}


def _as_field_error(error: Any) -> FieldError:
    place = error["loc"][1:]  # the first one is the type
    return field_error(error, "/source", place, HINTS.get(place[0] if place else "", ""))


def _check_project(project: str, pointer: str, place: str) -> None:
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError(pointer, "unknown_value", detail, "", place)])


@transaction.atomic
def cancel(actor: Actor, package: Package, precondition: Precondition = any_version) -> Package:
    """End a build that waits or runs."""
    locked = _locked(actor, package, precondition)
    if locked.state not in OPEN:
        raise InvalidState(f"{locked} is {locked.state} already.", state=locked.state, allowed_actions=["archive"])
    _write(locked, state="cancelled", reason_text=f"cancelled by {actor.name}", finished_at=Now(), now_at="")
    record(actor, "package.cancel", "package", locked.id, str(locked), project=locked.project)
    return queries.find_package(actor, locked.id)


@transaction.atomic
def archive(actor: Actor, package: Package, precondition: Precondition = any_version) -> Package:
    """Take a package from those that new runs may name. Runs that name it go on."""
    locked = _locked(actor, package, precondition)
    if locked.state in OPEN or locked.archived_at:
        state = "archived" if locked.archived_at else locked.state
        raise InvalidState(f"{locked} is {state}.", state=state, allowed_actions=queries.allowed_actions(locked))
    _write(locked, archived_at=Now())
    record(actor, "package.archive", "package", locked.id, str(locked), project=locked.project)
    return queries.find_package(actor, locked.id)


@transaction.atomic
def restore(actor: Actor, package: Package, precondition: Precondition = any_version) -> Package:
    """Let new runs name an archived package again."""
    locked = _locked(actor, package, precondition)
    if not locked.archived_at:
        actions = queries.allowed_actions(locked)
        raise InvalidState(f"{locked} is not archived.", state=locked.state, allowed_actions=actions)
    _write(locked, archived_at=None)
    record(actor, "package.restore", "package", locked.id, str(locked), project=locked.project)
    return queries.find_package(actor, locked.id)


def _locked(actor: Actor, package: Package, precondition: Precondition) -> Package:
    actor.require(Scope.PACKAGES_WRITE, package.project)
    locked = Package.objects.select_for_update().get(pk=package.pk)
    precondition(locked.version)
    return locked


def _write(package: Package, **columns: Any) -> None:
    Package.objects.filter(pk=package.pk).update(version=F("version") + 1, updated_at=Now(), **columns)
