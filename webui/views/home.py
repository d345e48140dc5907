"""Home: what needs me, my runs, what waits, free devices; three steps on the first visit."""

from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.contracts.status import TERMINAL
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs import queue
from flexmarl.controlplane.telemetry import queries as telemetry
from webui import reading, templates_offered
from webui.figures.steps import spark
from webui.formats import moment, plural
from webui.views.base import is_part, page, project_of, projects_of, show

ACTIVE = ("starting", "running", "pausing", "resuming", "stopping")
LOOK_BACK = timedelta(days=1)
"""A run that failed longer ago than this no longer needs anybody."""
MOST_CARDS, MOST_OPEN, MOST_ENDED = 12, 60, 20
WINDOW = 20
"""Steps over which a card averages the reward."""
DEMO = "reference_game"


@page()
def home(request: HttpRequest) -> HttpResponse:
    """Show what is wrong first, then what runs and what waits."""
    actor, project = actor_of(request), project_of(request)
    mine = runs.light(runs.runs(actor)).filter(owner_id=request.user.pk, archived_at=None)
    mine = mine.filter(project_id=project) if project else mine
    if not mine.exists():
        return _first_visit(request)
    open_ones = list(mine.exclude(state__status__in=TERMINAL)[:MOST_OPEN])
    ended = list(mine.filter(state__status__in=TERMINAL).order_by("-state__status_since", "-id")[:MOST_ENDED])
    found = {row["no"]: row for row in runs.run_rows([*open_ones, *ended])}
    active = [run for run in open_ones if run.state.status in ACTIVE][:MOST_CARDS]
    verdicts = telemetry.verdicts(active)
    sick = sick_runs([(found[run.no], verdicts.get(run.no)) for run in active])
    devices = inventory.devices() if actor.may(Scope.CLUSTER_READ) else []
    needs = [*sick, *needs_me([found[run.no] for run in [*open_ones, *ended]], timezone.localtime())]
    needs += devices_out(devices)
    pools = inventory.pools(devices) if actor.may(Scope.CLUSTER_READ) else []
    context = {
        "nav": "home",
        "project_word": project,
        "needs": needs,
        "summary": summary(len(needs), len(active)),
        "cards": cards(active, found, verdicts),
        "waiting": waiting([found[run.no] for run in open_ones], queue.queue(actor)),
        "recent": [found[run.no] for run in ended if run.state.status != "failed"][:6],
        "pools": [{**pool, "strip": strip(pool)} for pool in pools],
    }
    return show(request, "webui/parts/home.html" if is_part(request) else "webui/home.html", context)


def summary(needs: int, active: int) -> str:
    """Say in one line how many things need somebody and how many runs train."""
    first = f"{plural(needs, 'item')} need{'s' if needs == 1 else ''} attention" if needs else "Nothing needs attention"
    return f"{first}, {plural(active, 'run')} {'is' if active == 1 else 'are'} training"


def _first_visit(request: HttpRequest) -> HttpResponse:
    templates = experiments.templates()
    demo = next((row for row in templates if row["name"] == DEMO), None)
    actor, chosen = actor_of(request), project_of(request)
    writable = [name for name in projects_of(request) if actor.may(Scope.RUNS_WRITE, name)]
    context = {
        "nav": "home",
        "demo": templates_offered.line(demo) if demo else None,
        "groups": templates_offered.grouped(row for row in templates if row["name"] != DEMO),
        "starts": templates_offered.STARTS,
        "project_word": chosen,
        "into": chosen if chosen in writable else next(iter(writable), ""),
    }
    return show(request, "webui/first_visit.html", context)


def cards(
    active: list[Any], rows: dict[int, dict[str, Any]], verdicts: dict[int, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Running runs with their reward of the last 20 steps, its change from the 20 before, and a sparkline."""
    curves, recent = runs.curves(active, points=60), runs.recent(active, 2 * WINDOW)
    found = []
    for run in active:
        values = recent.get(run.no, [])
        now, before = values[-WINDOW:], values[-2 * WINDOW : -WINDOW]
        reward = sum(now) / len(now) if now else None
        found.append(
            {
                "run": rows[run.no],
                "top": reading.best_score(run),
                "reward": reward,
                "change": reward - sum(before) / len(before) if reward is not None and before else None,
                "spark": spark(curves.get(run.no, []), 148, 44),
                "verdict": verdicts.get(run.no),
            }
        )
    return found


def waiting(rows: list[dict[str, Any]], queued: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs that have not begun, in the order of the queue, drafts last, each with what it waits for."""
    places = {entry["run_no"]: entry for entry in queued if entry["run_no"] is not None}
    found = []
    for row in rows:
        if row["status"] not in ("queued", "draft"):
            continue
        place = places.get(row["no"])
        text = place["text"] if place else row["reason_text"] or "Waits for free devices."
        found.append(
            {
                **row,
                "text": "Not started." if row["status"] == "draft" and not place else text,
                "place": f"{ordinal(place['position'])} in queue" if place else "",
                "order": place["position"] if place else 10_000,
            }
        )
    return sorted(found, key=lambda row: row["order"])


def ordinal(place: int) -> str:
    """Write a place in words up to third, then in figures."""
    return {1: "first", 2: "second", 3: "third"}.get(place, f"{place}th")


def sick_runs(pairs: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> list[dict[str, Any]]:
    """Runs whose verdict is an alarm, with the sentence that says why."""
    found = []
    for row, verdict in pairs:
        if verdict is not None and verdict["tone"] == "bad":
            title = f"{row['key']} is {verdict['word'].lower()}"
            need = _need(verdict["icon"], "bad", title, row, "Open run", row["web_url"])
            found.append({**need, "text": verdict["text"], "at": None})
    return found


def needs_me(rows: list[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """Runs that failed in the last day, or that somebody paused and has not resumed."""
    found = []
    for row in rows:
        at = moment(row["status_since"])
        if row["status"] == "failed" and at is not None and now - at < LOOK_BACK:
            title = f"{row['key']} failed at step {row['step']}"
            found.append(_need("circle-x", "bad", title, row, "Open logs", f"{row['web_url']}/logs"))
        elif row["status"] == "paused":
            title = f"{row['key']} is paused at step {row['step']}"
            need = _need("player-pause", "wn", title, row, "Open run", row["web_url"])
            found.append({**need, "resume": row["id"] if "resume" in row["allowed_actions"] else ""})
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
    """Nodes that stopped answering while runs hold their devices, and devices that no run gets."""
    silent: dict[str, int] = {}
    found = []
    for device in devices:
        if device["node_state"] == "silent" and device["lease"] is not None:
            silent[device["node"]] = silent.get(device["node"], 0) + 1
        elif device["state"] in ("cordoned", "draining", "drained", "lost"):
            found.append((f"Device {device['id']} is {device['state']}", "No run can use it until this changes."))
    for node, count in silent.items():
        held = f"Runs hold {plural(count, 'device')} of it."
        text = f"{held} Engines move to other devices after 90 s; trainers do when it is drained with its leases moved."
        found.append((f"Node {node} does not answer", text))
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
