"""A run's pages: overview, timeline, events, config. The header is one part, the same on all of them."""

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse

from flexmarl.contracts.environments import environment_facts
from flexmarl.contracts.spec import ExperimentSpec
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui import reading
from webui.figures import episodes, learning, matrix, pace, steps
from webui.figures.base import Agent, SeriesSet
from webui.views import words
from webui.views.base import page, show

TABS = (
    ("overview", "Overview", "webui:run"),
    ("trajectories", "Trajectories", "webui:trajectories"),
    ("pipeline", "Pipeline", "webui:pipeline"),
    ("timeline", "Timeline", "webui:timeline"),
    ("events", "Events", "webui:events"),
    ("config", "Config", "webui:config"),
    ("checkpoints", "Checkpoints", "webui:checkpoints"),
)
OVERVIEW_WINDOW = 300
OVERVIEW_SERIES = (
    *learning.REWARD_SERIES,
    *learning.GROUP_SERIES,
    *matrix.names(matrix.LEARNING),
    *matrix.names(matrix.STABILITY),
    *pace.TIME_SERIES,
    *pace.STALENESS_SERIES,
    *pace.THROUGHPUT_SERIES,
)


def run_frame(request: HttpRequest, key: str, tab: str) -> dict[str, Any]:
    """What the header of every tab shows."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return {
        "nav": "runs",
        "found": found,
        "tab": tab,
        "tabs": TABS,
        "run": row,
        "verbs": words.verbs(row, may_act=runs.may_act(actor_of(request), found)),
        "pending": words.pending(row),
        "notice": words.notice(row),
        "verdict": telemetry.verdict(found),
    }


@page()
def overview(request: HttpRequest, key: str) -> HttpResponse:
    """Show state, step, ETA, reward per agent, pipeline and devices of a run."""
    context = run_frame(request, key, "overview")
    return show(request, "webui/run_overview.html", {**context, **summary(context["found"], context["run"])})


@page()
def header_part(request: HttpRequest, key: str) -> HttpResponse:
    """The header alone, re-read while the run moves."""
    return show(request, "webui/parts/run_header.html", run_frame(request, key, request.GET.get("tab", "overview")))


@page()
def summary_part(request: HttpRequest, key: str) -> HttpResponse:
    """Tiles, step bar, micro-batches, devices and the rail alone."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/run_summary.html", {"run": row, **summary(found, row)})


def summary(found: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Everything of the overview that is text or small drawings."""
    series = reading.series(found, OVERVIEW_SERIES)
    agents = [Agent.of(agent) for agent in row["agents"]]
    timeline = telemetry.timeline(found, OVERVIEW_WINDOW)
    progress = row["progress"]
    rewards = series.get("reward/team")[1]
    last_step = max(0, row["step"] - 1)
    rows = reading.episodes_of_step(found, last_step) if row["step"] else []
    return {
        "tiles": words.tiles(row, series, timeline),
        "sparks": [
            {
                "agent": agent,
                "agent_row": mark,
                "reward": (progress["agents"].get(agent.role) or {}).get("reward"),
                "spark": steps.spark(series.get("reward/agent", agent.role)[1], 100, 28),
            }
            for agent, mark in zip(agents, row["agents"], strict=True)
        ],
        "reward_basis": words.reward_basis(progress, rewards),
        "bar": steps.step_bar(series),
        "micro_batches": [] if row["finished_at"] else steps.micro_batches(progress, agents),
        "devices": timeline["devices"],
        "picked": episodes.pick(rows, seed=last_step),
        "last_step": last_step,
        "changed": words.changed(row),
        "learning_words": learning.rising(rewards, series.get("reward/team")[0]),
        "wait_words": pace.wait_words(series),
        "matrix_columns": min(4, len(agents)),
    }


@page()
def figures(request: HttpRequest, key: str) -> HttpResponse:
    """The charts of the overview as data."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    series = reading.series(found, OVERVIEW_SERIES)
    agents = [Agent.of(agent) for agent in row["agents"]]
    drawn = reading.drawn(overview_figures(row, series, agents))
    return JsonResponse({"seq": row["seq"], "step": row["step"], **drawn})


def overview_figures(row: dict[str, Any], series: SeriesSet, agents: list[Agent]) -> dict[str, Any]:
    """Build every chart of the overview."""
    spec = ExperimentSpec.model_validate(row["spec"])
    warmup = max((p.warmup.steps for p in spec.policies.values() if p.warmup is not None), default=0)
    drawn = (
        learning.team_reward(series, warmup, environment_facts(spec.environment).optimum),
        learning.group_signal(series),
        pace.step_time(series),
        pace.staleness(series, agents, spec.mechanisms.lag_policy.bound),
        pace.throughput(series, agents),
    )
    return {
        "figures": {figure.name: figure.as_dict() for figure in drawn},
        "matrices": {
            "learning": matrix.matrix(series, agents, matrix.LEARNING),
            "stability": matrix.matrix(series, agents, matrix.STABILITY),
        },
        "warmup": warmup,
    }


@page()
def config(request: HttpRequest, key: str) -> HttpResponse:
    """Show the resolved specification with the source of each value."""
    context = run_frame(request, key, "config")
    row = context["run"]
    only = request.GET.get("only", "")
    return show(request, "webui/run_config.html", {**context, "groups": words.config_groups(row, only), "only": only})
