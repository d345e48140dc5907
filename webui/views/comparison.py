"""Members of an episode group side by side: best against worst, all, or chosen ones."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.common.problems import NotFound, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.telemetry import queries as telemetry
from webui import reading
from webui.views.base import page, show, whole_number
from webui.views.run import run_frame
from webui.views.trajectory_viewer import group_no

MOST = 8
ENDS = 4
"""Members that best and worst shows: the two best and the two worst."""


@page(Scope.TRAJECTORIES_READ)
def compare(request: HttpRequest, key: str) -> HttpResponse:
    """Show members of one group aligned by turn."""
    context = run_frame(request, key, "trajectories")
    run = context["found"]
    ids = [text for text in request.GET.get("ids", "").split(",") if text]
    preset = "chosen" if ids else ("all" if request.GET.get("show") == "all" else "ends")
    draw = _draw(request, ids)
    group = telemetry.episode_group(run, draw)
    shown = ids or picked(group, preset, request.GET.get("with", ""))
    refusal = ""
    found: dict[str, Any] = {}
    try:
        found = telemetry.trajectory_compare(run, shown)
    except ValidationProblem as problem:
        refusal = f"{problem.detail} {problem.errors[0].hint}"
    agents = {agent["role"]: agent for agent in context["run"]["agents"]}
    return show(
        request,
        "webui/run_compare.html",
        {
            **context,
            "group": {**group, "group_no": group_no(group)},
            "preset": preset,
            "ids": ids,
            "top": reading.best_score(run),
            "refusal": refusal,
            "members": [_member(row, group) for row in found.get("members", [])],
            "rows": [{**row, "agent": agents.get(row["role"])} for row in _rows(found)],
            "first": found.get("first_difference"),
            "beyond": preset == "all" and len(group["members"]) > MOST,
            "most": MOST,
            "back": request.GET.get("with", "") or (shown[0] if shown else ""),
        },
    )


def _draw(request: HttpRequest, ids: list[str]) -> int:
    if ids:
        return telemetry.parse_id(ids[0])[0]
    draw = whole_number(request, "draw")
    if draw is None or draw < 0:
        raise NotFound("Select the group with ?draw= or its members with ?ids=.")
    return draw


def picked(group: dict[str, Any], preset: str, mine: str) -> list[str]:
    """Choose members: all of them, or the best and the worst with the one that was open among them."""
    finished = [row for row in group["members"] if row["status"] == "finished"]
    ranked = [row["id"] for row in sorted(finished, key=lambda row: (-row["team_score"], row["member"]))]
    if preset == "all" or len(ranked) <= ENDS:
        return ranked[:MOST]
    chosen = [ranked[0], ranked[1], ranked[-2], ranked[-1]]
    if mine in ranked and mine not in chosen:
        chosen[1 if ranked.index(mine) < len(ranked) / 2 else 2] = mine
    return chosen


def _member(row: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    statistics = group["statistics"]
    values = set(row["advantages"].values())
    return {
        **row,
        "rank": "best" if row["id"] == statistics["best"] else "worst" if row["id"] == statistics["worst"] else "",
        "advantage": values.pop() if len(values) == 1 else None,
    }


def _rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Say in the empty cells after which turn their member had ended."""
    members = found.get("members", [])
    return [
        {
            **row,
            "columns": [
                {"cell": cell, "ended": member["turns"] if row["no"] > member["turns"] else None}
                for cell, member in zip(row["cells"], members, strict=True)
            ],
        }
        for row in found.get("rows", [])
    ]
