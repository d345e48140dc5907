"""What the orchestrator and the store hold of a run: cohorts and lag, rows by place, decisions with their reasons."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.figures.steps import spark
from webui.narrowing import address_with
from webui.views.base import page, show, whole_number
from webui.views.checks import titled
from webui.views.joint_words import COHORT_STATES, DECISIONS, DROP_CAUSES
from webui.views.sharing_words import shared

SHOWN = {
    "": ("All", None),
    "under_way": ("In progress", sorted(telemetry.UNDER_WAY)),
    "applied": ("Applied", ["applied"]),
    "abandoned": ("Abandoned", ["abandoned"]),
}
"""Word in the address -> (words, states) of the cohorts that are listed."""
COHORTS = 8
"""Newest cohorts on the page; the API has all of them."""
COUNTED_AT_ONCE = 2_000
"""Episodes up to which the page counts and checks a run's rows by itself; above, a person asks for it."""
LINES = 60
"""Decisions on a page."""
LARGEST = 2**31


@page()
def joint_part(request: HttpRequest, key: str) -> HttpResponse:
    """Cohorts and lag, re-read while the run moves."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/joint.html", {"run": row, **joint(request, found, row)})


@page()
def store_part(request: HttpRequest, key: str) -> HttpResponse:
    """Rows by place and the promises checked on them."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/store.html", {"run": row, **store(request, found, row)})


@page()
def decisions_part(request: HttpRequest, key: str) -> HttpResponse:
    """The list of decisions alone."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/decisions.html", {"run": row, **decided(request, found, row)})


def joint(request: HttpRequest, found: Any, row: dict[str, Any]) -> dict[str, Any]:
    """What the cohorts' and the lag's card show."""
    word = request.GET.get("cohorts", "")
    word = word if word in SHOWN else ""
    whole = telemetry.cohorts(found)
    lag = telemetry.lag(found, shown=whole)
    agents, place = agents_by_policy(row), _place_of(row)
    states = SHOWN[word][1]
    shown = [one for one in whole["results"] if states is None or one["state"] in states]
    return {
        "cohorts": [
            {
                **one,
                "look": COHORT_STATES[one["state"]],
                "pinned": sorted(one["pins"].items(), key=lambda pin: place(pin[0])),
                "policies": [
                    own | {"title": _batches_text(own)}
                    for own in sorted(one["policies"], key=lambda own: place(own["policy"]))
                ],
                "out": _groups_out(one),
            }
            for one in shown[:COHORTS]
        ],
        "cohorts_known": bool(whole["results"]),
        "cohort_words": [(name, words, address_with(request, cohorts=name)) for name, (words, _) in SHOWN.items()],
        "cohorts_shown": word,
        "joint_query": urlencode({"cohorts": word}) if word else "",
        "lags": sorted(
            (_lag(one, agents.get(one["policy"])) for one in lag["policies"]), key=lambda own: place(own["policy"])
        ),
        **_replay(found, row, agents, place),
        "shares": shared(telemetry.sharing(found)),
        "ruled_out": [(DROP_CAUSES.get(one["cause"], one["cause"]), one["rows"]) for one in lag["groups_ruled_out"]],
    }


def _batches_text(own: dict[str, Any]) -> str:
    """Say of a policy's part of a cohort what it has cut and what became of it."""
    others = f" ({own['imported']} imported)" if own["imported"] else ""
    again = f", {own['replayed']} of them replayed{others}" if own["replayed"] else ""
    fates = ", ".join(f"{own[fate]} {fate}" for fate in ("accumulated", "applied", "void"))
    return f"{own['policy']}: {own['rows']} rows{again}; {own['cut']} micro-batches cut, {fates}"


def _replay(found: Any, row: dict[str, Any], agents: dict[str, Any], place: Callable[[str], int]) -> dict[str, Any]:
    """What the archive's card shows; a run without one has no card."""
    replays = found.spec["sampling"].get("replay", {})
    kind = replays.get("type") if isinstance(replays, dict) else "none"  # runs of earlier versions said a word
    if kind not in ("archive", "rescue"):
        return {"replays": None}
    archive = sorted(row["progress"]["archive"], key=lambda one: (place(one["policy"]), one["age"]))
    return {
        "replays": replays,
        "rows_replayed": row["progress"]["rows_replayed"],
        "archive": [one | {"agent": agents.get(one["policy"])} for one in archive],
    }


def _lag(one: dict[str, Any], agent: dict[str, Any] | None) -> dict[str, Any]:
    values = [step["own_max"] for step in one["steps"] if step["own_max"] is not None]
    last = one["steps"][-1] if one["steps"] else {}
    worst = max([one["own_now"] or 0, *values])
    return {
        **one,
        "agent": agent,
        "last": last,
        "drawn": spark([0.0, *values]) if len(values) > 1 and max(values) > 0 else None,
        "beyond": worst > one["bound"] and one["at_cut"] != "train",
        "gone": sum(row["rows"] for row in one["dropped"]),
        "causes": [(DROP_CAUSES.get(row["cause"], row["cause"]), row["rows"]) for row in one["dropped"]],
    }


def store(request: HttpRequest, found: Any, row: dict[str, Any]) -> dict[str, Any]:
    """What the store's card shows: all of it on a small run or when asked, else only that it may be asked for."""
    small = row["progress"]["episodes_finished"] <= COUNTED_AT_ONCE
    if not (small or request.GET.get("count") == "1"):
        return {"store": None, "checks": [], "broken": 0, "count_address": address_with(request, count="1")}
    agents, place, report = agents_by_policy(row), _place_of(row), telemetry.consistency(found)
    state = telemetry.store_state(found)
    return {
        "store": state,
        "places": [
            {**one, "agent": agents.get(one["policy"]), "recorded_as": _recorded_as(one)}
            for one in sorted(state["policies"], key=lambda own: place(own["policy"]))
        ],
        "report": report,
        "checks": titled(report),
        "broken": sum(not check["ok"] for check in report["checks"]),
        "store_query": "count=1" if not small else "",
    }


def decided(request: HttpRequest, found: Any, row: dict[str, Any]) -> dict[str, Any]:
    """A page of decisions with the filters that chose it."""
    kind, policy = request.GET.get("kind", ""), request.GET.get("policy", "")
    kind = kind if kind in telemetry.DECISION_KINDS else ""
    step = step_of(request)
    cohort = None if step is None else step - 1
    wanted = telemetry.DecisionFilter([kind] if kind else None, [policy] if policy else None, cohort)
    try:
        shown, refused = telemetry.decisions(found, wanted, request.GET.get("cursor") or None, LINES), ""
    except ValidationProblem as problem:
        shown, refused = {"results": [], "next": None}, problem.detail
    agents = agents_by_policy(row)
    chosen = {"kind": kind, "policy": policy, "step": "" if step is None else str(step)}
    return {
        "decisions": [
            {**one, "word": DECISIONS.get(one["kind"], one["kind"]), "agent": agents.get(one["policy"])}
            for one in shown["results"]
        ],
        "decisions_refused": refused,
        "decision_kinds": [(name, DECISIONS[name]) for name in telemetry.DECISION_KINDS],
        "decision_policies": sorted(agents),
        "wanted": chosen,
        "wanted_any": any(chosen.values()),
        "older": address_with(request, cursor=shown["next"]) if shown["next"] else "",
        "held_back": bool(request.GET.get("cursor")),
        "decision_query": urlencode({name: value for name, value in chosen.items() if value}),
    }


def step_of(request: HttpRequest) -> int | None:
    """Return the step that a list is narrowed to, None when the address names no legal one."""
    step = whole_number(request, "step")
    return step if step is not None and 1 <= step < LARGEST else None


def _groups_out(cohort: dict[str, Any]) -> str:
    """Say which groups of a cohort give nothing to training."""
    counts = {word: cohort[f"groups_{word}"] for word in ("refused", "dropped", "surplus")}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def _recorded_as(place: dict[str, Any]) -> str:
    """Say why rows are kept and never trained."""
    parts = {
        "of evaluation": place["evaluation"],
        "of agents that are not trained": place["untrained"],
        "rejected or surplus": place["ruled_out"],
        "unused when the run ended": place["left"],
    }
    return ", ".join(f"{count} {word}" for word, count in parts.items() if count) or "None"


def _place_of(row: dict[str, Any]) -> Callable[[str], int]:
    """Return the place of a policy among those of the team."""
    order = [agent["policy"] for agent in row["agents"]]
    return lambda policy: order.index(policy) if policy in order else len(order)


def agents_by_policy(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the first agent of each policy: its hue is the policy's."""
    return {agent["policy"]: agent for agent in reversed(row["agents"])}
