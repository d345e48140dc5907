"""The Load tab: what agents ask against what engines can do, who was moved where, and what takes longest."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from flexmarl.contracts.wire import EVALUATION_DRAWS
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.figures import load as drawings
from webui.narrowing import address_with
from webui.views import load_words as words
from webui.views.base import page, show
from webui.views.joint import agents_by_policy
from webui.views.run import run_frame

WINDOWS = (("60", "1 min"), ("300", "5 min"), ("1800", "30 min"))
"""(seconds in the address, words) of the windows."""
MOVES = 12
"""Newest moves on the page; the API has all of them."""


@page()
def load(request: HttpRequest, key: str) -> HttpResponse:
    """Show demand against capacity, engines, moves and the longest turns of a run."""
    context = run_frame(request, key, "load")
    return show(request, "webui/run_load.html", {**context, **_read(request, context["found"], context["run"])})


@page()
def load_part(request: HttpRequest, key: str) -> HttpResponse:
    """Everything of it that changes, re-read while the run moves."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/load.html", {"run": row, **_read(request, found, row)})


def _read(request: HttpRequest, found: Any, row: dict[str, Any]) -> dict[str, Any]:
    window = request.GET.get("window", "300")
    window = window if window in dict(WINDOWS) else "300"
    state, policy = request.GET.get("state", ""), request.GET.get("policy", "")
    state = state if state in words.ENGINE_STATES or state == "suspect" else ""
    payload = telemetry.load(found, float(window))
    order = [agent["policy"] for agent in row["agents"]]
    payload["policies"].sort(key=lambda one: order.index(one["policy"]) if one["policy"] in order else len(order))
    moves = telemetry.engine_moves(found, (), [policy] if policy else (), None, MOVES)
    swaps = telemetry.swaps(found, (), [policy] if policy else (), None, MOVES)
    agents = agents_by_policy(row)
    by_role = {agent["role"]: agent for agent in row["agents"]}
    shown = words.chosen(payload["engines"], state, policy)
    wanted = {"window": window if window != "300" else "", "state": state, "policy": policy}
    return {
        "load": payload,
        "sentence": words.sentence(payload),
        "detail": words.detail(payload),
        "states_text": words.states_text(payload["states"]),
        "policies": [(one, agents.get(one["policy"])) for one in payload["policies"]],
        "engines": [{**one, "look": words.look_of(one), "served": _served(one, agents)} for one in shown],
        "demand": drawings.demand(payload, agents),
        "requests": drawings.requests(payload),
        "skew": drawings.skew(payload),
        "moves": [
            {**one, "agent": agents.get(one["policy"]), "from": agents.get(one["out"]),
             "why": words.MOVE_CAUSES.get(one["cause"], one["cause"])}
            for one in moves["results"]
        ],
        "more_moves": moves["next"] is not None,
        "swaps": [
            {**one, "agent": agents.get(one["policy"]), "look": words.SWAPS[one["phase"]]} for one in swaps["results"]
        ],
        "more_swaps": swaps["next"] is not None,
        "shares": _shares(found),
        "longest": [
            {**one, "agent": by_role.get(one["role"]), "evaluated": one["draw"] >= EVALUATION_DRAWS,
             "number": one["draw"] % EVALUATION_DRAWS}
            for one in payload["longest"]
            if not policy or one["policy"] == policy
        ],
        "left": [
            {**one, "look": words.LEFT_CAUSES.get(one["cause"], (one["cause"], ""))} for one in payload["reply_moves"]
        ],
        "points": _table(payload) if request.GET.get("view") == "table" else None,
        "table": request.GET.get("view") == "table",
        "table_query": address_with(request, view="" if request.GET.get("view") == "table" else "table"),
        "windows": [(value, text, address_with(request, window=value)) for value, text in WINDOWS],
        "window": window,
        "seconds": dict(WINDOWS)[window],
        "wanted": {"state": state, "policy": policy},
        "wanted_any": bool(state or policy),
        "state_choices": [(name, look[2]) for name, look in words.ENGINE_STATES.items()] + [("suspect", "Suspect")],
        "query": urlencode({**{n: v for n, v in wanted.items() if v}, **_view(request)}),
    }  # fmt: skip


def _view(request: HttpRequest) -> dict[str, str]:
    return {"view": "table"} if request.GET.get("view") == "table" else {}


def _served(engine: Mapping[str, Any], agents: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Join what an engine holds, loads and forgets, each policy with its agent."""
    about = dict.fromkeys(one["policy"] for one in (*engine["serves"], *engine["loading"]))
    texts = {name: words.version_text(engine, name) for name in about} | dict.fromkeys(engine["leaving"], "leaves")
    return [{"policy": name, "agent": agents.get(name), "text": text} for name, text in texts.items()]


def _shares(found: Any) -> bool:
    """Tell whether engines hold fewer policies than there are, so that places move."""
    places = found.spec["resources"].get("engine_policies")
    return places is not None and places < len(found.spec["policies"])


def _table(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Join what is drawn, newest first: one row per part of the window."""
    asked = {(one["at"], one["policy"]): one["waiting"] + one["in_flight"] for one in payload["asked"]}
    names = [one["policy"] for one in payload["policies"]]
    return [
        {**point, "asked": [asked.get((point["at"], name), 0.0) for name in names]}
        for point in reversed(payload["queues"])
    ]
