"""What people and schedulers stick to a run beside its specification: tags, an outer id, a parent, a priority."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from flexmarl.contracts.resolve import Resolved, leaves
from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.runs.models import Run

MOST_TAGS = 20
SHOWN = 10
"""Projects that a refusal names at most."""
_TAG = re.compile(r"[\w][\w .:/-]{0,31}")
DEFAULT_PRIORITY = 50


@dataclass(frozen=True, slots=True)
class Marks:
    tags: tuple[str, ...] = ()
    external_id: str = ""
    request_digest: str = ""
    parent: Run | None = None
    priority: int = DEFAULT_PRIORITY


NO_MARKS = Marks()


def inherited(made: Resolved, parent: Run) -> dict[str, str]:
    """Say where a copy's values come from: what it left alone has the source it had in the original."""
    before = dict(leaves(parent.spec))
    return {
        where: parent.sources.get(where, "user") if where in before and before[where] == value else "user"
        for where, value in leaves(made.document)
    }


def legal_tags(tags: Iterable[str]) -> list[str]:
    """Return tags sorted and each once. Raises ValidationProblem naming the wrong one."""
    found = sorted({tag.strip() for tag in tags})
    for tag in found:
        if not _TAG.fullmatch(tag):
            detail = f"{tag[:40]!r} is not a valid tag."
            hint = "1 to 32 letters, digits, spaces and . : / - _, beginning with a letter or digit."
            raise ValidationProblem(detail, errors=[FieldError("/tags", "wrong_type", detail, hint)])
    if len(found) > MOST_TAGS:
        detail = f"A run has at most {MOST_TAGS} tags."
        raise ValidationProblem(detail, errors=[FieldError("/tags", "too_many", detail)])
    return found


def known_project(project: str) -> None:
    """Raise ValidationProblem when there is no such project. For callers who may know of every project."""
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        names = ", ".join(Project.objects.order_by("name").values_list("name", flat=True)[:SHOWN])
        hint = f"Projects: {names}."
        raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail, hint)])
