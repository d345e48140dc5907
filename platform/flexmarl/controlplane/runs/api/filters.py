"""What lists of runs can be narrowed and ordered by. The pages use the same declarations."""

from django.db.models import Q

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.api.filters import Parameter


def _search(text: str) -> Q:
    return Q(name__icontains=text) | Q(key__icontains=text) | Q(note__icontains=text)


PARAMETERS = (
    Parameter("status", "May be repeated.", lookup="state__status", choices=tuple(RunStatus), many=True),
    Parameter("owner", "User name; may be repeated.", lookup="owner__username", many=True),
    Parameter("experiment", "Name of the experiment.", lookup="experiment__name"),
    Parameter("preset", "May be repeated.", lookup="preset", many=True),
    Parameter("template", "May be repeated.", lookup="template", many=True),
    Parameter("environment", "Type of the environment; may be repeated.", lookup="environment", many=True),
    Parameter("name", "Exact name.", lookup="name"),
    Parameter("name__ic", "Part of the name.", lookup="name__icontains"),
    Parameter("key", "Readable key.", lookup="key"),
    Parameter("created_at__gte", "Made at this time or later.", "date-time", lookup="created_at__gte"),
    Parameter("created_at__lt", "Made before this time.", "date-time", lookup="created_at__lt"),
    Parameter("q", "Text in name, key or notes.", condition=_search),
)

ORDERINGS = {
    "-created_at": "-id",
    "created_at": "id",
    "name": "name,id",
    "-name": "-name,-id",
    "-status_since": "-state__status_since,-id",
    "-step": "-state__step,-id",
}
