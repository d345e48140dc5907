"""Home: what needs me, my runs, what waits, free devices; three steps on the first visit."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.runs import queries as runs
from webui import reading
from webui.figures.steps import spark
from webui.formats import moment
from webui.views.base import is_part, page, show

ACTIVE = ("starting", "running", "pausing", "stopping")
LOOK_BACK = timedelta(days=1)
"""A run that failed longer ago than this no longer needs anybody."""
MOST_CARDS = 12
DEMO = "reference_game"


@page()
def home(request: HttpRequest) -> HttpResponse:
    """Show what is wrong first, then what runs and what waits."""
    mine = runs.runs(actor_of(request)).filter(owner_id=request.user.pk)
    if not mine.exists():
        return _first_visit(request)
    found = list(mine[:50])
    rows = runs.run_rows(found)
    pairs = [(run, row) for run, row in zip(found, rows, strict=True) if row["status"] in ACTIVE]
    pools = inventory.pools()
    needs = needs_me(rows, datetime.now(UTC)) + devices_out(inventory.devices())
    context = {
        "nav": "home",
        "needs": needs,
        "cards": [card(run, row) for run, row in pairs[:MOST_CARDS]],
        "waiting": [row for row in rows if row["status"] in ("queued", "draft")],
        "recent": [row for row in rows if row["status"] in ("completed", "cancelled", "killed")][:6],
        "pools": [{**pool, "strip": strip(pool)} for pool in pools],
    }
    return show(request, "webui/parts/home.html" if is_part(request) else "webui/home.html", context)


def _first_visit(request: HttpRequest) -> HttpResponse:
    templates = [template_line(row) for row in experiments.templates()]
    templates.sort(key=lambda row: row["name"] != DEMO)
    return show(request, "webui/first_visit.html", {"nav": "home", "templates": templates})


def template_line(row: dict[str, Any]) -> dict[str, Any]:
    """A template with the marks of its roles."""
    marks = reading.role_marks(row["roles"])
    steps = row["spec"]["budget"]["train_steps"]
    return {**row, "marks": marks, "steps": steps, "demo": row["name"] == DEMO}


def card(run: Any, row: dict[str, Any]) -> dict[str, Any]:
    """A running run with its reward of the last 20 steps and a sparkline."""
    points = reading.series(run, ["reward/team"]).get("reward/team")[1]
    recent, before = points[-20:], points[-40:-20]
    reward = sum(recent) / len(recent) if recent else None
    change = reward - sum(before) / len(before) if reward is not None and before else None
    return {
        "run": row,
        "top": reading.best_score(run),
        "reward": reward,
        "change": change,
        "spark": spark(points, 148, 44),
    }


def needs_me(rows: list[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """Runs that failed in the last day, or that somebody paused and has not resumed."""
    found = []
    for row in rows:
        at = moment(row["status_since"])
        if row["status"] == "failed" and at is not None and now - at < LOOK_BACK:
            title = f"{row['key']} failed at step {row['step']}"
            found.append(_need("circle-x", "bad", title, row, "Open events", f"{row['web_url']}/events"))
        elif row["status"] == "paused":
            title = f"{row['key']} is paused at step {row['step']}"
            found.append(_need("player-pause", "wn", title, row, "Open run", row["web_url"]))
    return found


def _need(icon: str, tone: str, title: str, row: dict[str, Any], verb: str, url: str) -> dict[str, Any]:
    text = row["reason_text"] or row["name"]
    return {
        "icon": icon,
        "tone": tone,
        "title": title,
        "text": text,
        "at": row["status_since"],
        "verb": verb,
        "url": url,
    }


def devices_out(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nodes that stopped answering and devices that are cordoned or lost."""
    found = []
    for device in devices:
        if device["node_state"] == "silent" and device["lease"] is not None:
            text = f"Its node {device['node']} stopped answering. The run waits until it is back or proved dead."
            found.append((f"Device {device['id']} does not answer", text))
        elif device["state"] in ("cordoned", "draining", "drained", "lost"):
            found.append((f"Device {device['id']} is {device['state']}", "No run gets it until that changes."))
    return [
        {
            "icon": "alert-triangle",
            "tone": "wn",
            "title": title,
            "text": text,
            "at": None,
            "verb": "Open devices",
            "url": "/cluster",
        }
        for title, text in found
    ]


def strip(pool: dict[str, Any]) -> list[str]:
    """One word per device of a pool: used, out, free."""
    return ["used"] * pool["leased"] + ["out"] * pool["unavailable"] + ["free"] * pool["free"]
