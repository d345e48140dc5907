"""Filters and orders of lists of models, the same in REST and on the page."""

from typing import get_args

from django.db.models import Q

from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.models import WorkState
from flexmarl.controlplane.registry.sources import SourceType

STATES = tuple(str(state) for state in WorkState)
SOURCES: tuple[str, ...] = (*get_args(SourceType), "checkpoint")
ORDERINGS = {
    "-created_at": "-id",
    "created_at": "id",
    "name": "name,project,-revision,id",
    "-name": "-name,-project,-revision,-id",
    "state": "state,-id",
    "-state": "-state,-id",
}
FILTERS = (
    Parameter("project", "Name of the project.", lookup="project"),
    Parameter("name", "Exact name: all versions of a model.", lookup="name"),
    Parameter("q", "Part of the name.", lookup="name__icontains"),
    Parameter("state", "State of the import.", lookup="state", choices=STATES, many=True),
    Parameter("source", "Where it came from.", lookup="source__type", choices=SOURCES, many=True),
    Parameter("architecture", "Model type, such as llama.", lookup="facts__architecture"),
    Parameter("owner", "Name of who imported it.", lookup="owner"),
    Parameter(
        "archived",
        "yes: only archived ones; no: only others.",
        choices=("yes", "no"),
        condition=lambda word: Q(archived_at__isnull=word == "no"),
    ),
)
