"""Storage: who takes the room, which limits hold, what goes next. Everything as the housekeeping measured it last."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.storage import report
from webui.views.base import page, show

KINDS = {
    "samples": "Samples",
    "episodes": "Episodes",
    "events": "Events",
    "log": "Log lines",
    "series": "Series",
    "payloads": "Payload files",
    "checkpoints": "Checkpoints",
}
PLACES = {
    "database": "Database",
    "wal": "Write-ahead log",
    "checkpoints": "Checkpoints",
    "payloads": "Payload files",
    "state": "Weights and training states",
    "packages": "Builds of packages",
    "models": "Models made of packages",
    "uploads": "Uploads of models",
    "logs": "Log files",
    "free": "Free on this disk",
}
LIMITS = {"samples": "Samples and payloads", "log": "Log lines", "runs": "Whole runs"}


@page(Scope.CLUSTER_ADMIN)
def storage(request: HttpRequest) -> HttpResponse:
    """Show what takes the room."""
    found = report()
    whole = sum(row["bytes"] for row in found["kinds"]) or 1
    context: dict[str, Any] = {
        "nav": "storage",
        "now": timezone.now(),
        "storage": found,
        "kinds": [{**row, "word": KINDS[row["kind"]], "share": row["bytes"] / whole} for row in found["kinds"]],
        "places": [{**row, "word": PLACES.get(row["name"], row["name"])} for row in found["places"]],
        "limits": [{**row, "word": LIMITS[row["name"]]} for row in found["limits"]],
        "removed": [{**row, "word": (LIMITS | KINDS)[row["kind"]]} for row in found["removed"]],
        "heads": list(KINDS.values()),
        "runs": [{**row, "cells": [row["kinds"][kind] for kind in KINDS]} for row in found["runs"]],
    }
    return show(request, "webui/storage.html", context)
