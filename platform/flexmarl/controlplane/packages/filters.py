"""Filters and orders of lists of packages, the same in REST and on the page."""

from django.db.models import Q

from flexmarl.controlplane.common.api.filters import Parameter

STATES = ("queued", "building", "ready", "failed", "cancelled")
OPEN = ("queued", "building")
SOURCES = ("requirement", "upload")
ORDERINGS = {
    "-created_at": "-id",
    "created_at": "id",
    "name": "name,-id",
    "-name": "-name,-id",
    "state": "state,-id",
    "-state": "-state,-id",
}
FILTERS = (
    Parameter("project", "Name of the project.", lookup="project"),
    Parameter("name", "Exact name of the distribution.", lookup="name"),
    Parameter("q", "Part of the name.", lookup="name__icontains"),
    Parameter("state", "State of the build.", lookup="state", choices=STATES, many=True),
    Parameter("source", "Where it came from.", lookup="source__type", choices=SOURCES, many=True),
    Parameter("owner", "Name of who asked for it.", lookup="owner"),
    Parameter(
        "archived",
        "yes: only archived ones; no: only others.",
        choices=("yes", "no"),
        condition=lambda word: Q(archived_at__isnull=word == "no"),
    ),
)
