"""The agents of a run side by side, and the page of one."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.agents import queries as definitions
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.formats import DASH, number, percent, si, tiny
from webui.views.base import page, show
from webui.views.load_words import look_of, version_text
from webui.views.overview import switches
from webui.views.run import run_frame
from webui.views.team import graph_of, policies_of

TRAJECTORIES = 8
COLUMNS = (
    ("reward", "Reward", "reward/agent", lambda v: number(v, 3)),
    ("tokens_per_s", "Tokens/s", "throughput/tokens", si),
    ("response_tokens", "Response length", "length/response", si),
    ("entropy", "Entropy", "train/entropy", lambda v: number(v, 2)),
    ("loss", "Loss", "train/loss", lambda v: number(v, 3)),
    ("kl_engine", "Mismatch", "train/kl_engine", tiny),
    ("clipped", "Clip fraction", "train/clipped", lambda v: percent(v, 1)),
    ("staleness", "Staleness", "staleness/own_max", number),
)
"""(member, word, series, how it is written) of the matrix."""
CHARTS = (
    ("reward/agent", "mean", False),
    ("throughput/tokens", "mean", False),
    ("length/response", "mean", False),
    ("train/entropy", "mean", True),
    ("train/loss", "mean", True),
    ("train/kl_engine", "mean", True),
    ("train/grad_norm", "mean", True),
    ("train/clipped", "share", True),
    ("staleness/own_max", "max", True),
    ("time/train", "sum", True),
)
"""(series, stat, kept per policy) of an agent's charts."""


@page()
def agents(request: HttpRequest, key: str) -> HttpResponse:
    """Show every agent of a run with its last figures and its devices."""
    context = run_frame(request, key, "agents")
    row = context["run"]
    return show(
        request,
        "webui/run_agents.html",
        {
            **context,
            "graph": graph_of(row, policies_of(row)),
            "team": _team(context["found"]),
            "may_save_team": actor_of(request).may(Scope.RUNS_WRITE, row["project"]),
            **matrix(context["found"], row),
        },
    )


def _team(found: Any) -> dict[str, Any] | None:
    """The team that a run names, as far as it is still there."""
    named = found.spec.get("team")
    team = definitions.team_named(found.project_id, named["name"]) if named else None
    return None if team is None else {"name": team.name, "web_url": f"/teams/{team.pk}"}


@page()
def agents_part(request: HttpRequest, key: str) -> HttpResponse:
    """The matrix alone."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/agents.html", {"run": row, **matrix(found, row)})


@page()
def agent(request: HttpRequest, key: str, role: str) -> HttpResponse:
    """Show one agent: its charts, its devices, its last trajectories and its policy's versions."""
    context = run_frame(request, key, "agents")
    return show(
        request,
        "webui/run_agent.html",
        {**context, **switches(request), **_agent(context["found"], context["run"], role)},
    )


@page()
def agent_part(request: HttpRequest, key: str, role: str) -> HttpResponse:
    """What of an agent's page changes with each step."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/agent.html", {"run": row, **_agent(found, row, role)})


def matrix(found: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Rows of agents with written figures; a column that nobody has a value for is left out."""
    rows = telemetry.agents(found, row)
    columns = [column for column in COLUMNS if any(one[column[0]] is not None for one in rows)]
    return {
        "columns": [
            {"word": word, "meaning": telemetry.define(series).meaning, "shown_unit": _unit(word, series)}
            for _, word, series, _ in columns
        ],
        "rows": [
            {
                **one,
                "model_text": model_text(one["model"], one["tuning"]),
                "cells": [written(one, column) for column in columns],
            }
            for one in rows
        ],
    }


def _unit(word: str, series: str) -> str:
    """The unit beside a column's word, when the word does not say it already."""
    unit = telemetry.define(series).unit
    return "" if unit in ("share", "versions") or unit in word.lower() else unit


def written(row: dict[str, Any], column: Any) -> str:
    """Write a figure, or a dash when it was never measured."""
    value = row[column[0]]
    return DASH if value is None else column[3](value)


def model_text(model: dict[str, Any] | None, tuning: object = None) -> str:
    """Say which model a policy starts from, and with which adapter."""
    if not model:
        return DASH
    parts = [str(model[name]) for name in ("name", "path", "size") if model.get(name)]
    kind = str(model.get("type", ""))
    if kind == "checkpoint":
        parts = [str(model["run"]), "after step", str(model["step"])]
    text = " ".join([kind, *parts]).strip() or DASH
    if isinstance(tuning, dict) and tuning.get("type") == "lora":
        return f"{text}, adapter of rank {tuning['rank']}"
    return text


def _agent(found: Any, row: dict[str, Any], role: str) -> dict[str, Any]:
    one = telemetry.agent(found, role, row)
    known = {(series["name"], series["agent"], series["stat"]): series for series in telemetry.catalogue(found)}
    charts = []
    for name, stat, by_policy in CHARTS:
        series = known.get((name, one["policy"] if by_policy else role, stat))
        if series:
            keys = ("name", "agent", "stat", "title", "unit", "meaning")
            charts.append(
                {
                    **{k: series[k] for k in keys},
                    "key": f"{name}|{series['agent']}|{stat}",
                    "hue": one["hue"],
                    "monogram": one["monogram"],
                    "axes": " ".join(series["x"]),
                }
            )
    wanted = telemetry.EpisodeFilter(origin=Origin.TRAIN, status=EpisodeStatus.FINISHED)
    return {
        "agent": {**one, "model_text": model_text(one["model"], one["tuning"])},
        "charts": charts,
        "figures": [
            {"word": column[1], "text": written(one, column), "meaning": telemetry.define(column[2]).meaning}
            for column in COLUMNS
            if one[column[0]] is not None
        ],
        "serving": [
            {**engine, "look": look_of(engine), "text": version_text(engine, one["policy"])}
            for engine in telemetry.engines(found, policies=[one["policy"]])
            if engine["state"] != "gone"
        ],
        "episodes": telemetry.trajectory_page(found, wanted, limit=TRAJECTORIES)[0],
    }
