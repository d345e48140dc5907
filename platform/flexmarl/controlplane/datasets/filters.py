"""Filters and orders of lists of datasets and of their rows, the same in REST and on the pages."""

from django.db.models import Q

from flexmarl.controlplane.common.api.filters import Parameter

ORDERINGS = {
    "-created_at": "-id",
    "created_at": "id",
    "name": "name,project_id",
    "-name": "-name,-project_id",
}
FILTERS = (
    Parameter("project", "Name of the project.", lookup="project_id"),
    Parameter("name", "Exact name.", lookup="name"),
    Parameter("q", "Part of the name.", lookup="name__icontains"),
    Parameter(
        "archived",
        "yes: only archived ones; no: only others.",
        choices=("yes", "no"),
        condition=lambda word: Q(archived_at__isnull=word == "no"),
    ),
)
ROW_FILTERS = (
    Parameter("q", "Words of the prompt, or how they begin."),
    Parameter("held_out", "true: rows for evaluation; false: rows to train on.", "boolean", lookup="held_out"),
)
