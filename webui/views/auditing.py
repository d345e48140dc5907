"""The audit trail: who did what to what, with what was before and after. All of its state is in the URL."""

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.dateparse import parse_datetime
from django.utils.timezone import make_aware

from flexmarl.controlplane.accounts import audit
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.scopes import Scope
from webui.views.base import page, project_of, show

PAGE = 50
FILTERS = (
    ("actor", "User", "actor_name"),
    ("action", "Action", "action"),
    ("target_kind", "Kind", "target_kind"),
    ("target_id", "Target", "target_id"),
    ("request_id", "Request", "request_id"),
)
"""(name in the URL and in the API, word of its chip, column)."""
TIMES = (("since", "After", "at__gte"), ("until", "Before", "at__lt"))
RUN, MODEL = "run", "model"
DONE = {
    "create": "created",
    "update": "changed",
    "delete": "deleted",
    "add": "added",
    "remove": "removed",
    "revoke": "revoked",
    "stop": "stopped",
    "kill": "killed",
    "pause": "paused",
    "resume": "resumed",
    "save": "saved",
    "start": "started",
    "retry": "retried",
    "take": "took",
    "finish": "finished",
    "clone": "cloned",
    "fork": "forked",
    "replan": "went on elsewhere with",
    "replan_dismiss": "set aside the devices proposed to",
    "build": "asked to be built",
    "check": "checked",
    "import": "imported",
    "check_cancel": "cancelled the check of",
    "cancel": "cancelled",
    "fetch": "fetched from a hub",
    "upload": "uploaded",
    "archive": "archived",
    "restore": "restored",
    "cordon": "cordoned",
    "drain": "drained",
    "enable": "enabled",
    "move": "moved",
    "reset_password": "reset the password of",
    "change_password": "changed the password of",
    "preferences": "changed the preferences of",
}
"""Verb of an action -> what the trail says; others are shown as they are."""


@page(Scope.AUDIT_READ)
def trail(request: HttpRequest) -> HttpResponse:
    """Show the rows in reach, newest first."""
    actor = actor_of(request)
    rows = _filtered(request)
    before = request.GET.get("before", "")
    if before and _is_id(before):
        rows = rows.filter(id__lt=UUID(before))
    found = list(rows[: PAGE + 1])
    context = {
        "nav": "audit",
        "rows": [_row(entry) for entry in found[:PAGE]],
        "older": _with(request, before=str(found[PAGE - 1].id)) if len(found) > PAGE else "",
        "newest": _with(request, before="") if before else "",
        "chips": _chips(request),
        "actions": audit.actions_known(actor),
        "values": {name: request.GET.get(name, "") for name in ("actor", "action", "since", "until")},
        "csv_url": "/api/v1/audit/export" + _query(request),
        "reach": sorted(actor.reach(Scope.AUDIT_READ) or []),
    }
    return show(request, "webui/audit.html", context)


def _filtered(request: HttpRequest) -> QuerySet[Any]:
    rows = audit.entries(actor_of(request))
    for name, _, column in FILTERS:
        if value := request.GET.get(name, ""):
            rows = rows.filter(**{column: value})
    for name, _, column in TIMES:
        if (at := _time(request.GET.get(name, ""))) is not None:
            rows = rows.filter(**{column: at})
    place = project_of(request)
    # A person with one project is always "in" it; rows of the installation stay visible to who may read them.
    return rows.filter(project=place) if place and "project" in request.GET else rows


def _row(entry: Any) -> dict[str, Any]:
    row = audit.row(entry)
    changes = [
        {**change, "before": _text(change["before"]), "after": _text(change["after"])}
        for change in audit.differences(entry)
    ]
    detail = [(name, _text(value)) for name, value in entry.detail.items() if value not in (None, "", [], {})]
    noun, _, verb = entry.action.partition(".")
    url = ""
    if entry.target_kind == RUN and entry.target_name and verb != "delete":
        url = f"/runs/{entry.target_name}"
    elif entry.target_kind == MODEL:
        url = f"/models/{entry.target_id}"
    return {
        **row,
        "changes": changes,
        "facts": detail,
        "target_url": url,
        "noun": noun,
        "verb": DONE.get(verb, verb.replace("_", " ")),
    }


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value) or "none"
    if value == "":
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _chips(request: HttpRequest) -> list[dict[str, str]]:
    words = [(name, word) for name, word, _ in (*FILTERS, *TIMES)] + [("project", "Project")]
    return [
        {"text": word, "value": request.GET[name], "url": _with(request, **{name: "", "before": ""})}
        for name, word in words
        if request.GET.get(name) and request.GET[name] != "all"
    ]


def _query(request: HttpRequest) -> str:
    """The filters as the API takes them."""
    query = request.GET.copy()
    for name in list(query):
        known = name in {one for one, *_ in (*FILTERS, *TIMES)} or (name == "project" and query[name] != "all")
        if not known or not query[name]:
            del query[name]
    for name, _, _ in TIMES:
        if name in query:
            at = _time(str(query[name]))
            del query[name]
            if at is not None:
                query[name] = at.isoformat()
    return f"?{query.urlencode()}" if query else ""


def _with(request: HttpRequest, **changes: str) -> str:
    query = request.GET.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return f"{request.path}?{query.urlencode()}" if query else request.path


def _time(text: str) -> datetime | None:
    """Read a time of the form, in the reader's zone when it names none."""
    try:
        at = parse_datetime(text)
    except ValueError:
        return None
    return make_aware(at) if at is not None and at.tzinfo is None else at


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
