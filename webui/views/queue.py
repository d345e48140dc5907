"""The queue: who waits for devices, in the order of service, and what each one lacks."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.runs import queue
from webui.views.base import is_part, page, show


@page(Scope.CLUSTER_READ)
def queue_page(request: HttpRequest) -> HttpResponse:
    """Show all that wait, or those that wait for the pool of the URL."""
    actor = actor_of(request)
    found = queue.queue(actor)
    for row in found:
        row["editable"] = row["run"] is not None and actor.may(Scope.RUNS_ACT_ANY, row["project"])
        row["movable"] = row["editable"] and row["purpose"] == "start"
    pool = request.GET.get("pool", "")
    rows = [row for row in found if not pool or pool in _pools_of(row)]
    context = {
        "nav": "queue",
        "rows": rows,
        "pool": pool,
        "pools": _choices(found, pool),
        "here": request.get_full_path(),
        "known_pools": inventory.pool_names() if any(row["movable"] for row in rows) else [],
    }
    return show(request, "webui/parts/queue.html" if is_part(request) else "webui/queue.html", context)


def _choices(found: list[dict[str, Any]], pool: str) -> list[dict[str, Any]]:
    url = reverse("webui:queue")
    names = sorted({name for row in found for name in _pools_of(row)} | ({pool} if pool else set()))
    every = {"word": "All", "count": len(found), "on": not pool, "url": url}
    return [every] + [
        {
            "word": name,
            "count": sum(name in _pools_of(row) for row in found),
            "on": name == pool,
            "url": f"{url}?pool={name}",
        }
        for name in names
    ]


def _pools_of(row: dict[str, Any]) -> set[str]:
    return {wish["pool"] for wish in row["pools"]}
