"""What the frame shows beside the pages: counts of the side bar, the calls behind a page, the keys it knows."""

from functools import cache
from typing import Any

from django.db.models import Count, Q
from django.http import HttpRequest

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs
from webui import calls, keyboard


def around(request: HttpRequest) -> dict[str, Any]:
    """Context of the frame. What needs the database is read only by templates that show it."""
    match = request.resolver_match
    return {
        "nav_counts": cache(lambda: counts(request)),
        "api_calls": cache(lambda: calls.of(request)),
        "page_keys": keyboard.of((match.url_name if match else "") or ""),
        "density": getattr(request.user, "density", "comfortable"),
    }


def counts(request: HttpRequest) -> dict[str, int]:
    """Figures beside entries: runs in reach, and those of them that wait for devices. Zeroes are left out."""
    if not request.user.is_authenticated or not actor_of(request).may(Scope.RUNS_READ):
        return {}
    waiting = Count("pk", filter=Q(state__status="queued"))
    row = runs.runs(actor_of(request)).order_by().aggregate(runs=Count("pk"), queue=waiting)
    return {name: number for name, number in row.items() if number}
