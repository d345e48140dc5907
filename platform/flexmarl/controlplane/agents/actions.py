"""Gives roles their hue."""

from collections.abc import Iterable

from django.db import connection, transaction

from flexmarl.controlplane.agents.models import AgentDefinition
from flexmarl.controlplane.agents.queries import next_hue

_LOCK = 0x48554553  # advisory lock number: two first uses must not draw the same hue


@transaction.atomic
def ensure_roles(project: str, roles: Iterable[str]) -> None:
    """Enter roles that the project has not used before, each with the hue used least so far."""
    wanted = list(dict.fromkeys(roles))
    known = set(AgentDefinition.objects.filter(project_id=project, role__in=wanted).values_list("role", flat=True))
    if known.issuperset(wanted):
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    hues = dict(AgentDefinition.objects.filter(project_id=project).values_list("role", "hue"))
    for role in wanted:
        if role not in hues:
            hues[role] = next_hue(hues.values())
            AgentDefinition.objects.create(project_id=project, role=role, hue=hues[role])
