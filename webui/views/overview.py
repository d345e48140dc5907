"""The overview of a run: what it is at, whether its agents learn, where time goes."""

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.runs import checkpoints
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.simulations import replan_actions
from flexmarl.controlplane.telemetry import queries as telemetry
from webui import reading
from webui.figures import axes, episodes, learning, matrix, pace, steps
from webui.figures.base import Agent, Points, SeriesSet
from webui.formats import moment
from webui.packing import packed
from webui.views import replan_words, words
from webui.views.base import page, show
from webui.views.programs import programs
from webui.views.run import run_frame
from webui.views.team import speaking

WINDOW_S = 300
TEAM_SERIES = (
    *learning.REWARD_SERIES,
    *learning.GROUP_SERIES,
    *pace.STALENESS_SERIES,
    *pace.THROUGHPUT_SERIES,
)
AGENT_SERIES = (*matrix.names(matrix.LEARNING), *matrix.names(matrix.STABILITY))
SUMMARY_SERIES = ("reward/team", "reward/agent", "throughput/tokens", *pace.TIME_SERIES, *pace.STALENESS_SERIES)
DEFINED = {
    "team_reward": "reward/team",
    "group_signal": "groups/useful",
    "step_time": "time/step",
    "staleness": "staleness/own_max",
    "tokens": "throughput/tokens",
    "samples": "throughput/samples",
}
"""Figure -> series whose definition its `i` says."""


@page()
def overview(request: HttpRequest, key: str) -> HttpResponse:
    """Show state, step, ETA, reward per agent, pipeline and devices of a run."""
    context = run_frame(request, key, "overview")
    return show(
        request,
        "webui/run_overview.html",
        {
            **context,
            **summary(context["found"], context["run"], context["leases"], _bar_asked(request)),
            **switches(request),
            **speaking(context["found"], context["run"]),
            **programs(request, context["found"], context["run"]),
            "bar_asked": _bar_asked(request),
            "planned": words.planned(telemetry.planned(context["found"])),
            **replan(request, context["found"]),
        },
    )


@page()
def summary_part(request: HttpRequest, key: str) -> HttpResponse:
    """Tiles, step bar, micro-batches, devices and the rail alone."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    actor = actor_of(request)
    context = {
        "run": row,
        "may_edit": runs.may_edit(actor, found),
        "forked": checkpoints.forked_from(actor, found) if found.parent_id else None,
    }
    drawn = summary(found, row, telemetry.leases(found), _bar_asked(request))
    return show(request, "webui/parts/run_summary.html", {**context, **drawn})


@page()
def planned_part(request: HttpRequest, key: str) -> HttpResponse:
    """What the plan predicted beside what the run takes so far."""
    found = runs.find_run(actor_of(request), key)
    return show(request, "webui/parts/planned.html", {"planned": words.planned(telemetry.planned(found))})


@page()
def replan_part(request: HttpRequest, key: str) -> HttpResponse:
    """What a run measures beside what its plan assumed, and the devices that it is proposed instead."""
    found = runs.find_run(actor_of(request), key)
    return show(request, "webui/parts/replan.html", {"run": runs.run_detail(found), **replan(request, found)})


def replan(request: HttpRequest, found: Any) -> dict[str, Any]:
    """The plan of a run while it goes on, as words; none where nothing is compared and nothing was."""
    told = replan_words.told(replan_actions.replan_row(found))
    return {"replan": told, "may_replan": runs.may_act(actor_of(request), found)}


def _bar_asked(request: HttpRequest) -> str:
    """What of the run the step bar shall show, "" for its newest steps."""
    asked = request.GET.get("bar", "")
    return asked if asked == "all" or (asked.isascii() and asked.isdigit() and len(asked) < 10) else ""


def switches(request: HttpRequest) -> dict[str, Any]:
    """The axis and the smoothing that the address names; what it does not know is the usual one."""
    x, smooth = request.GET.get("x", ""), request.GET.get("smooth", "")
    return {
        "axes": axes.AXES,
        "smoothings": axes.SMOOTHING,
        "x": x if x in dict(axes.AXES) else "step",
        "smooth": smooth if smooth in dict(axes.SMOOTHING) else "1",
    }


def summary(found: Any, row: dict[str, Any], leases: Any, bar: str = "") -> dict[str, Any]:
    """Everything of the overview that is text or small drawings; `bar` says which steps the step bar shows."""
    first = max(0, row["step"] - words.STEPS + 1)
    series = reading.exact(found, SUMMARY_SERIES, first, row["step"])
    zoom = steps.zoom(bar, row["step"])
    agents = [Agent.of(agent) for agent in row["agents"]]
    devices = telemetry.utilisation(found, leases, WINDOW_S)
    progress = row["progress"]
    rewards = series.get("reward/team")[1]
    last_step = max(0, row["step"] - 1)
    rows = reading.episodes_of_step(found, last_step) if row["step"] else []
    return {
        "tiles": words.tiles(row, series, devices, _evaluated(found, progress)),
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
        "zoom": zoom,
        "bar": steps.step_bar(_bar_series(found, series, zoom), marks=telemetry.marks(found, row["attempts"])),
        "micro_batches": [] if row["finished_at"] else steps.micro_batches(progress, agents),
        "devices": devices["devices"],
        "picked": episodes.pick(rows, seed=last_step),
        "last_step": last_step,
        "changed": words.changed(row, experiments.resolved(row["template"])),
        "wait_words": pace.wait_words(series),
    }


def _evaluated(found: Any, progress: dict[str, Any]) -> Points:
    """All evaluations: the best one is looked for among them."""
    known = progress["eval_solved"] is not None
    return reading.dense(found, ("eval/solved",)).get("eval/solved") if known else ([], [])


def _bar_series(found: Any, newest: SeriesSet, zoom: dict[str, Any]) -> SeriesSet:
    """What the step bar shows: all steps, or each of a hundred; the newest ones were read already."""
    if zoom["all"]:
        return reading.dense(found, ("reward/team",))
    return newest if zoom["newest"] else reading.exact(found, ("reward/team",), zoom["first"], zoom["last"])


@page()
def figures(request: HttpRequest, key: str) -> HttpResponse:
    """The charts of the overview as data, on the axis and with the smoothing that the address names."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    chosen = switches(request)
    drawn = packed(overview_figures(found, row, chosen["x"], float(chosen["smooth"])))
    return JsonResponse({"seq": row["seq"], "step": row["step"], **drawn})


def overview_figures(
    found: Any, row: dict[str, Any], x: reading.Axis = "step", strength: float = 1.0
) -> dict[str, Any]:
    """Build every chart of the overview."""
    agents = [Agent.of(agent) for agent in row["agents"]]
    by_step = reading.series(found, (*TEAM_SERIES, *AGENT_SERIES), "step", strength)
    own = by_step if x == "step" else reading.series(found, (*AGENT_SERIES, "reward/team")[: _team_too(x)], x, strength)
    start = moment(row["started_at"])
    axis = axes.axis_of(x, by_step.get("reward/team"), own.get("reward/team"), start.timestamp() if start else None)
    if x == "time":
        own = _elapsed(own, axis, start.timestamp() if start else None)
    marks = telemetry.marks(found, row["attempts"])
    newest = reading.exact(found, pace.TIME_SERIES, max(0, row["step"] - words.STEPS + 1), row["step"])
    drawn = _team_figures(row, by_step, newest, reading.dense(found, ("reward/team",)), agents)
    made = {figure.name: axes.moved(axes.marked(figure, marks), axis).as_dict() for figure in drawn}
    for name, figure in made.items():
        figure["meaning"] = telemetry.define(DEFINED[name]).meaning
        figure["axis"] = axis.word if axis.steps else "step"
    return {
        "figures": made,
        "matrices": {
            "learning": _matrix(own, agents, matrix.LEARNING, axis, marks),
            "stability": _matrix(own, agents, matrix.STABILITY, axis, marks),
        },
        "axis": axis.as_dict(),
        "warmup": _warmup(row),
    }


def _team_too(x: str) -> int | None:
    """How many of the agents' series and the team's reward can be read on an axis: versions leave the team out."""
    return -1 if x == "version" else None


def _elapsed(series: SeriesSet, axis: axes.Axis, started_at: float | None) -> SeriesSet:
    """Turn moments of the agents' series into elapsed time in the unit of the axis."""
    times = series.get("reward/team")[0]
    if not axis.steps or not times:
        return series
    scale, _, since = axes.elapsed(times, started_at)
    return series.on(lambda at: round((at - since) / scale, 5))


def _team_figures(
    row: dict[str, Any], series: SeriesSet, newest: SeriesSet, dense: SeriesSet, agents: list[Agent]
) -> tuple[Any, ...]:
    """The charts of the team; `newest` has each of the newest steps, `dense` as many as are known."""
    spec = ExperimentSpec.model_validate(row["spec"])
    return (
        learning.team_reward(series, _warmup(row), spec.environment.facts().optimum, dense),
        learning.group_signal(series),
        pace.step_time(newest),
        pace.staleness(series, agents, spec.mechanisms.lag_policy.bound),
        pace.throughput(series, agents, "tokens"),
        pace.throughput(series, agents, "samples"),
    )


def _warmup(row: dict[str, Any]) -> int:
    policies = row["spec"]["policies"].values()
    return max((policy["warmup"]["steps"] for policy in policies if policy.get("warmup")), default=0)


def _matrix(
    series: SeriesSet,
    agents: list[Agent],
    metrics: tuple[matrix.MatrixRow, ...],
    axis: axes.Axis,
    marks: dict[str, Any],
) -> dict[str, Any]:
    made = matrix.matrix(series, agents, metrics)
    for line in made["rows"]:
        line["meaning"] = telemetry.define(line["name"]).meaning
    begun = [] if axis.name == "version" else [axis.place(one["step"] + 0.5) for one in marks["attempts"]]
    return {**made, "axis": axis.word, "attempts": begun}
