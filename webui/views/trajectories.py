"""Trajectories: a list with filters and a score histogram, and one conversation at a time."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from flexmarl.contracts.wire import EVALUATION_DRAWS
from webui import reading
from webui.figures import episodes
from webui.formats import DASH
from webui.views.base import page, show, whole_number
from webui.views.run import run_frame

PAGE = 40
SAMPLE = 500
"""Newest matching episodes that the histogram counts."""
FILTERS = ("step", "origin", "solved", "min", "max")


def wanted(request: HttpRequest, origin: str, *, scores: bool = True) -> telemetry.EpisodeFilter:
    """Read the filters of the URL."""
    step = whole_number(request, "step")
    return telemetry.EpisodeFilter(
        # Pages count steps from 1, as every chart does; a cohort has the number of the steps before it.
        step=None if step is None else step - (origin == "train"),
        origin=origin,
        solved={"yes": True, "no": False}.get(request.GET.get("solved", "")),
        score_min=_number(request, "min") if scores else None,
        score_max=_number(request, "max") if scores else None,
    )


def _number(request: HttpRequest, name: str) -> float | None:
    try:
        return float(request.GET[name])
    except (KeyError, ValueError):
        return None


@page(Scope.TRAJECTORIES_READ)
def listing(request: HttpRequest, key: str) -> HttpResponse:
    """Show the list with its newest trajectory open."""
    context = run_frame(request, key, "trajectories")
    found = listed(request, context["found"], key)
    first = found["rows"][0]["id"] if found["rows"] else ""
    opened = _opened(context["found"], context["run"], first) if first else {"t": None}
    return show(request, "webui/run_trajectories.html", {**context, **found, **opened, "many": True})


@page(Scope.TRAJECTORIES_READ)
def detail(request: HttpRequest, key: str, tid: str) -> HttpResponse:
    """Show one trajectory beside the list."""
    context = run_frame(request, key, "trajectories")
    opened = _opened(context["found"], context["run"], tid)
    found = listed(request, context["found"], key, around=opened["t"])
    return show(request, "webui/run_trajectories.html", {**context, **found, **opened, "many": False})


@page(Scope.TRAJECTORIES_READ)
def viewer_part(request: HttpRequest, key: str, tid: str) -> HttpResponse:
    """The conversation and its side panel alone."""
    found = runs.find_run(actor_of(request), key, Scope.TRAJECTORIES_READ)
    row = runs.run_detail(found)
    return show(request, "webui/parts/trajectory.html", {"run": row, **_opened(found, row, tid)})


@page(Scope.TRAJECTORIES_READ)
def rows_part(request: HttpRequest, key: str) -> HttpResponse:
    """The next page of the list alone."""
    found = runs.find_run(actor_of(request), key, Scope.TRAJECTORIES_READ)
    return show(
        request, "webui/parts/trajectory_rows.html", {"run": runs.run_detail(found), **listed(request, found, key)}
    )


def listed(request: HttpRequest, run: Any, key: str, around: dict[str, Any] | None = None) -> dict[str, Any]:
    """One page of the list, the histogram over its newest matches, and the filters in force."""
    after = _position(request.GET.get("after", ""))
    if around is not None and after is None and not any(request.GET.get(name) for name in FILTERS):
        # Open the list at the episode a link named: its group begins at its last member.
        after = (around["draw"] + 1, 0, 0)
    origin = _origin(request, around)
    rows, position = telemetry.trajectory_page(run, wanted(request, origin), PAGE, after)
    rows = [{**row, "group_no": group_no(row)} for row in rows]
    sample = telemetry.trajectory_page(run, wanted(request, origin, scores=False), SAMPLE)[0]
    query = {name: request.GET[name] for name in FILTERS if request.GET.get(name)}
    return {
        "rows": rows,
        "top": reading.best_score(run),
        "more": urlencode({**query, "after": "-".join(map(str, position))}) if position else "",
        "bins": [{"bin": b, "query": urlencode({**query, "min": b.low, "max": b.high})} for b in _bins(sample)],
        "sampled": len(sample),
        "last_bin": {"bin": _bins(sample)[-1]} if sample and _bins(sample) else None,
        "chips": _chips(query),
        "origin": origin,
        "query": urlencode(query),
        "filters": query,
    }


def _bins(sample: list[dict[str, Any]]) -> list[episodes.Bin]:
    return episodes.histogram([row["team_score"] for row in sample if row["status"] == "finished"])


def _origin(request: HttpRequest, around: dict[str, Any] | None) -> str:
    """Training episodes, unless evaluations are asked for or the open one is one."""
    asked = request.GET.get("origin", "")
    return asked if asked in ("train", "eval") else str((around or {}).get("origin", "train"))


def _chips(query: dict[str, str]) -> list[dict[str, str]]:
    found = []
    shown = dict(query)
    if "min" in shown and "max" in shown:
        shown["score"] = f"{float(shown.pop('min')):.2f} to {float(shown.pop('max')):.2f}"
    for name, value in shown.items():
        if name == "origin":
            continue
        gone = {"min", "max"} if name == "score" else {name}
        rest = urlencode({k: v for k, v in query.items() if k not in gone})
        found.append({"text": name.capitalize(), "value": value, "query": rest})
    return found


def _position(text: str) -> tuple[int, int, int] | None:
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return None
    return int(parts[0]), int(parts[1]), int(parts[2])


def _opened(run: Any, row: dict[str, Any], tid: str) -> dict[str, Any]:
    """One trajectory as a conversation: task, turns and remarks in order, scores, advantage, provenance."""
    found = telemetry.trajectory(run, tid)
    agents = {agent["role"]: agent for agent in row["agents"]}
    turns = {(turn["role"], turn["turn"]): {**turn, "agent": agents.get(turn["role"])} for turn in found["turns"]}
    for turn in turns.values():
        turn["marked"] = episodes.tokens(turn["tokens"])
    advantages = [turn["advantage"] for turn in turns.values() if turn["advantage"] is not None]
    rule = row["spec"]["algorithm"]["advantage"]
    group = [member for member in found["group"] if member["status"] == "finished"]
    return {
        "t": {**found, "group_no": group_no(found)},
        "top": reading.best_score(run),
        "conversation": conversation(found["transcript"], turns),
        "scores": [
            {"agent": agent, "role": role, "score": found["scores"][role]}
            for role, agent in agents.items()
            if role in found["scores"]
        ],
        "pins": [(name, found["pins"][name]) for name in _policies(row) if name in found["pins"]],
        "why": episodes.why(group, found["member"], rule, advantages),
        "facts": sorted((str(k), v) for k, v in dict(found["task"].get("facts") or {}).items()),
        "group": group,
        "micro_batches": _micro_batches(turns.values()),
    }


def _policies(row: dict[str, Any]) -> list[str]:
    """The policies of a run in the order of its agents."""
    return list(dict.fromkeys(agent["policy"] for agent in row["agents"]))


def _micro_batches(turns: Iterable[dict[str, Any]]) -> str:
    """Which micro-batches hold the turns: `S 11, L 11`."""
    found = {
        (t["agent"] or {}).get("monogram", t["role"]): t["micro_batch"] for t in turns if t["micro_batch"] is not None
    }
    return ", ".join(f"{mark} {no}" for mark, no in found.items()) or DASH


def group_no(row: dict[str, Any]) -> int:
    """Number of an episode group towards people; evaluations count apart."""
    return int(row["draw"]) - (EVALUATION_DRAWS if row["origin"] == "eval" else 0)


def conversation(transcript: list[Any], turns: dict[tuple[str, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Put turns and the environment's remarks into the order they happened; turns nobody named come last."""
    left = dict(turns)
    entries: list[dict[str, Any]] = []
    for entry in transcript:
        if isinstance(entry, list) and len(entry) >= 2 and str(entry[1]).lstrip("-").isdigit():
            turn = left.pop((str(entry[0]), int(entry[1])), None)
            if turn is not None:
                entries.append({"turn": turn, "no": sum(1 for e in entries if "turn" in e) + 1})
                remark = entry[2] if len(entry) > 2 else ""
                if remark:
                    entries.append({"remark": str(remark)})
        elif isinstance(entry, str):
            entries.append({"remark": entry})
        elif isinstance(entry, dict) and entry.get("text"):
            entries.append({"remark": str(entry["text"])})
    for turn in left.values():
        entries.append({"turn": turn, "no": sum(1 for e in entries if "turn" in e) + 1})
    return entries
