"""Where a model may be imported from: read from a request, or refused by name with what is legal."""

import contextlib
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args
from uuid import UUID

from django.conf import settings
from pydantic import TypeAdapter, ValidationError

from flexmarl.contracts.folder_roots import not_allowed
from flexmarl.contracts.hub_models import SETTING, HubModel
from flexmarl.contracts.specification.team import FolderModel, PackageModel
from flexmarl.contracts.uploaded_models import UploadModel
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.value_errors import field_error
from flexmarl.controlplane.registry import uploads
from flexmarl.store.data.model_roots import FolderNotAllowed, FolderUnreadable, ModelRoots

SourceType = Literal["package", "folder", "upload", "hub"]
ModelSource = FolderModel | PackageModel | UploadModel | HubModel
TYPES: dict[str, TypeAdapter[ModelSource]] = {
    "package": TypeAdapter(PackageModel),
    "folder": TypeAdapter(FolderModel),
    "upload": TypeAdapter(UploadModel),
    "hub": TypeAdapter(HubModel),
}


def allowed_roots() -> tuple[str, ...]:
    """Return the folders of servers below which a source may lie."""
    return tuple(map(str, settings.MODEL_ROOTS))


def hub() -> str:
    """Return the address of the hub that models may be imported from; empty: none."""
    return str(settings.HUB)


def read_source(actor: Actor, project: str, given: Mapping[str, Any]) -> ModelSource:
    """Read a source that a caller names for a project. Raises ValidationProblem with every refusal."""
    kind = given.get("type")
    if kind == "hub" and not hub():
        detail = f"Models are not fetched from a hub here: the operator has not set {SETTING}."
        hint = "Download the model with --local-dir, and upload its files or send type: folder with its path."
        raise _refused(FieldError("/source/type", "not_available", detail, hint))
    if kind not in TYPES:
        detail = f"{kind} is not a type of source." if kind else "type is required."
        hint = f"Legal: {', '.join(get_args(SourceType))}."
        raise _refused(FieldError("/source/type", "unknown_value" if kind else "required", detail, hint))
    try:
        source = TYPES[kind].validate_python(dict(given))
    except ValidationError as error:
        raise _refused(*map(_as_field_error, error.errors())) from error
    if isinstance(source, FolderModel):
        _check_folder(source.path)
    if isinstance(source, UploadModel):
        files = uploads.files_for_import(actor, project, UUID(source.id))
        return UploadModel.model_validate({"type": "upload", "id": source.id, "files": files})
    return source


def _check_folder(path: str) -> None:
    """Refuse a folder outside the allowed roots, in one text whatever lies there; the node opens it and looks again."""
    roots = ModelRoots(tuple(settings.MODEL_ROOTS), (str(settings.HOME),))
    with contextlib.suppress(FolderUnreadable):  # nodes may well be able to
        try:
            os.close(roots.open(path))
        except FolderNotAllowed as refused:
            problem = not_allowed("/source/path", roots.roots)
            raise _refused(FieldError(problem.pointer, problem.code, problem.detail, problem.hint)) from refused


def _as_field_error(error: Any) -> FieldError:
    return field_error(error, "/source", error["loc"])


def _refused(*errors: FieldError) -> ValidationProblem:
    return ValidationProblem(errors[0].detail, errors=errors)
