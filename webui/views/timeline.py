"""Timelines of devices: of a run, and of the whole cluster. The window, its end and the shape are in the URL."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.figures import composition, devices
from webui.views.base import is_part, page, show
from webui.views.run import run_frame

WINDOWS = ((10.0, "10 s"), (60.0, "1 min"), (300.0, "5 min"), (3600.0, "1 h"), (86_400.0, "1 day"))
"""(seconds, words) of the windows that are offered; a drag chooses any other."""
SHORTEST, LONGEST = 1.0, 7 * 86_400.0
SWATCHES = ("k1", "k2", "q2", "q1")


MOST_POOLS = 12
"""Pools that stand side by side; of more, one is named."""
MOST_IDLE = 60
"""Lanes of devices that nobody held in the window."""


@page()
def timeline(request: HttpRequest, key: str) -> HttpResponse:
    """Show what each device of the run did."""
    context = run_frame(request, key, "timeline")
    return show(request, "webui/run_timeline.html", {**context, **_of_run(request, context["found"], context["run"])})


@page()
def timeline_part(request: HttpRequest, key: str) -> HttpResponse:
    """The drawing alone."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/timeline.html", {"run": row, **_of_run(request, found, row)})


@page(Scope.CLUSTER_READ)
def cluster_timeline(request: HttpRequest) -> HttpResponse:
    """Show what every device did, and for whom."""
    chosen = _chosen(request, 300.0)
    pool = request.GET.get("pool", "")
    payload = telemetry.cluster_timeline(actor_of(request), chosen["seconds"], until=chosen["until"], pool=pool)
    idle, pools = payload["idle_devices"], payload["pools"]
    payload = {**payload, "idle_devices": idle[:MOST_IDLE]}
    agents: dict[str, dict[str, Any]] = {}
    hues: dict[str, int] = {}
    for run in payload["runs"]:
        for agent in run["agents"]:
            agents.setdefault(agent["role"], agent)
            hues.setdefault(f"{run['no']}/{agent['policy']}", agent["hue"])
    context = {
        **_context(request, payload, hues, chosen, list(agents.values())[:12]),
        "nav": "cluster_timeline",
        "pool": pool,
        "pools": [("", "All pools"), *((name, name) for name in pools if name == pool or len(pools) <= MOST_POOLS)],
        "pools_named": len(pools) > MOST_POOLS,
        "idle_further": max(0, len(idle) - MOST_IDLE),
    }
    return show(request, "webui/parts/timeline.html" if is_part(request) else "webui/cluster_timeline.html", context)


def _of_run(request: HttpRequest, found: Any, row: dict[str, Any]) -> dict[str, Any]:
    chosen = _chosen(request, fitting_window(row["progress"]["step_seconds"]))
    payload = telemetry.timeline(found, chosen["seconds"], until=chosen["until"])
    hues = {agent["policy"]: agent["hue"] for agent in reversed(row["agents"])}
    return _context(request, payload, hues, chosen, row["agents"])


def _context(
    request: HttpRequest, payload: dict[str, Any], hues: dict[str, int], chosen: dict[str, Any], agents: list[Any]
) -> dict[str, Any]:
    titles = {row["cause"]: row["title"] for row in payload["bubble"]["causes"]}
    held = len({lease["device_id"] for lease in payload["devices"]})
    drawn = devices.timeline(payload, hues, titles)
    start, end = payload["window"]
    span = end - start
    table = request.GET.get("view") == "table"
    return {
        "chart": drawn,
        "many": composition.composition(payload) if held > composition.LANES else None,
        "table": table,
        "table_query": _with(request, view="" if table else "table"),
        "windows": [(text, _with(request, window=f"{s:g}"), s == chosen["seconds"]) for s, text in WINDOWS],
        "query": request.GET.urlencode() if chosen["asked"] else _with(request, window=f"{chosen['seconds']:g}"),
        "earlier": _with(request, window=f"{span:g}", until=f"{end - span / 2:.3f}"),
        "later": _with(request, window=f"{span:g}", until=f"{end + span / 2:.3f}") if chosen["until"] else "",
        "newest": _with(request, until=""),
        "held_still": chosen["until"] is not None,
        "account": payload["bubble"],
        "causes": _stacked(payload["bubble"]["causes"]),
        "rows": _by_policy(drawn, agents),
        "agents": agents,
        "devices": payload["devices"],
        "held_devices": held,
        "titles": titles,
    }


def _chosen(request: HttpRequest, default: float) -> dict[str, Any]:
    """Read window and end from the address; a wrong one is as good as none."""
    seconds, until = _number(request, "window"), _number(request, "until")
    asked = seconds is not None and SHORTEST <= seconds <= LONGEST
    return {"seconds": seconds if asked else default, "until": until, "asked": asked}


def _number(request: HttpRequest, name: str) -> float | None:
    try:
        value = float(request.GET.get(name, ""))
    except ValueError:
        return None
    return value if 0 < value < 1e11 else None


def _with(request: HttpRequest, **changes: str) -> str:
    values = {name: value for name, value in request.GET.items() if name in ("window", "until", "view", "pool")}
    return urlencode({name: value for name, value in {**values, **changes}.items() if value})


def fitting_window(step_seconds: float | None) -> float:
    """The smallest window that shows at least six steps: in a longer one, blocks of short steps run together."""
    return next((seconds for seconds, _ in WINDOWS if seconds >= 6 * (step_seconds or 10.0)), WINDOWS[-1][0])


def _stacked(causes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give each cause its place in a bar of the idle time, longest first."""
    total = sum(cause["seconds"] for cause in causes) or 1.0
    x, out = 0.0, []
    for index, cause in enumerate(causes):
        width = 100 * cause["seconds"] / total
        out.append({**cause, "x": round(x, 3), "width": round(width, 3), "swatch": SWATCHES[min(index, 3)]})
        x += width
    return out


def _by_policy(chart: devices.Timeline, agents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Device seconds by policy and phase, most first; what is left of held time stands below."""
    marks = {agent["policy"]: agent for agent in reversed(agents)}
    rows = []
    for policy, phases in chart.seconds.items():
        rollout = phases.get("rollout", 0.0) + phases.get("eval", 0.0)
        train = phases.get("train", 0.0) + phases.get("step", 0.0)
        total = sum(phases.values())
        rows.append(
            {
                "policy": policy or "no policy", "agent": marks.get(policy), "rollout": rollout, "train": train,
                "other": total - rollout - train, "share": total / chart.held if chart.held else 0.0,
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: -row["share"])
