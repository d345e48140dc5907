"""Sentences and small tables about a run: tiles, notices. Pure: rows in, words out."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.resolve import leaves
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import SHOWN_TERMINAL
from webui.figures.base import Points, SeriesSet
from webui.figures.devices import BUSY, Timeline, shares
from webui.figures.learning import eval_text
from webui.figures.pace import recent_median
from webui.formats import DASH, duration, number, plural, si, signed

STEPS = 100
"""Newest steps that tiles speak of."""
ENDED = {
    "devices_given_back": "Devices released",
    "user_request": "Stopped by user",
    "budget_steps": "All steps done",
    "budget_time": "Time limit reached",
    "target_reached": "Target reached",
    "episodes_failed": "Episodes failed",
    "command_failed": "A command failed",
    "children_lost": "Children lost",
    "cannot_start": "Cannot start",
    "out_of_memory": "Out of memory",
    "orchestrator_error": "Orchestrator error",
    "store_differs": "Store inconsistent",
}
"""Reason of an ended run or attempt -> the same in a few words."""


def notice(run: Mapping[str, Any]) -> dict[str, str] | None:
    """The strip below the header: what went wrong or what the run waits for."""
    status, text = run["status"], run["reason_text"]
    if status == "failed":
        return {"tone": "bad", "icon": "circle-x", "word": "Failed", "text": text or run["reason"]}
    if status == "queued":
        return {"tone": "wn", "icon": "clock", "word": "Waiting", "text": text or "Waits for free devices."}
    if run["reason"] == "waiting_for_space":
        return {"tone": "bad", "icon": "alert-circle", "word": "Waiting for disk space", "text": f"{text}."}
    if run["reason"] == "waiting_for_upload":
        return {"tone": "bad", "icon": "alert-circle", "word": "Waiting for an upload", "text": f"{text}."}
    if run["reason"].startswith("recovering"):
        next_ = "Nothing is lost and no action is needed; see Logs for the reason."
        return {"tone": "wn", "icon": "refresh", "word": "Recovering", "text": f"{text}. {next_}"}
    if status in ("running", "starting", "resuming") and text:
        return {"tone": "", "icon": "info-circle", "word": "Now", "text": text}
    if status in SHOWN_TERMINAL and run["reason"] in ENDED:
        return {"tone": "", "icon": "info-circle", "word": ENDED[run["reason"]], "text": text}
    return None


def eta_basis(progress: Mapping[str, Any]) -> str:
    """What the estimate of the end is made of."""
    if not progress["step_seconds"]:
        return ""
    left = max(0, progress["max_steps"] - progress["step"])
    return (
        f"{plural(left, 'step')} left, at the median of the last 20 steps ({duration(progress['step_seconds'])}), "
        "from 20 % faster to 30 % slower. A target may end the run earlier."
    )


def tiles(
    run: Mapping[str, Any], series: SeriesSet, timeline: Mapping[str, Any], evaluated: Points = ([], [])
) -> list[dict[str, str]]:
    """The stat tiles after the two reward tiles: label, value, unit, basis."""
    progress, device = run["progress"], shares(timeline)
    rate = recent_median(series, "throughput/tokens")
    if rate is None:
        per_agent = [recent_median_of(series, agent["role"]) for agent in run["agents"]]
        known = [value for value in per_agent if value is not None]
        rate = sum(known) if known else None
    value, _, unit = si(rate).partition(" ")
    lags = [v for agent in run["agents"] for v in _lags(series, agent["policy"])]
    attempts = progress["episodes_finished"] + progress["episodes_failed"]
    window = duration(timeline["window"][1] - timeline["window"][0])
    return [
        _tile("Evaluation solved", percent_value(progress["eval_solved"]), "%", eval_text(progress, evaluated)),
        _tile("Bubble", percent_value(device["bubble"]), "%", f"of device time, {window}"),
        _tile("Tokens/s", value, unit, f"{si(progress['tokens_generated'])} generated"),
        _tile("Tokens delivered", percent_value(delivered(progress["tokens"])), "%", undelivered(progress["tokens"])),
        _tile(
            "Staleness max",
            number(max(lags)) if lags else DASH,
            "",
            f"bound {_bound(run)}, {plural(min(run['step'], STEPS), 'step')}",
        ),
        _tile(
            "Failed episodes",
            percent_value(progress["episodes_failed"] / attempts if attempts else None),
            "%",
            f"{number(progress['episodes_failed'])} of {number(attempts)}",
        ),
    ]


def delivered(tokens: Mapping[str, Any]) -> float | None:
    """Share of the tokens sampled in training episodes that reached a loss so far."""
    return tokens["delivered"] / tokens["sampled"] if tokens["sampled"] else None


def undelivered(tokens: Mapping[str, Any]) -> str:
    """Basis of the tile: how many, why others were not, and how often chains broke."""
    said = [f"of {si(tokens['sampled'])} sampled"]
    if tokens["waiting"]:
        said.append(f"{si(tokens['waiting'])} waiting")
    said += [f"{si(count)} {cause}" for cause, count in sorted(tokens["undelivered"].items()) if count]
    said += [
        f"{plural(count, 'break')} ({cause.replace('_', ' ')})" for cause, count in sorted(tokens["breaks"].items())
    ]
    return ", ".join(said)


def percent_value(share: float | None) -> str:
    """A share as the figure of a tile; its percent sign is the unit."""
    if share is None:
        return DASH
    return number(share * 100, 0 if share in (0, 1) else 1)


def recent_median_of(series: SeriesSet, agent: str) -> float | None:
    """Median tokens per second of an agent over the last steps."""
    values = sorted(series.get("throughput/tokens", agent)[1][-20:])
    return values[len(values) // 2] if values else None


def _lags(series: SeriesSet, policy: str) -> list[float]:
    return series.get("staleness/own_max", policy, "max")[1] or series.get("staleness/own_max", policy)[1]


def _bound(run: Mapping[str, Any]) -> int:
    return int(run["spec"]["mechanisms"]["lag_policy"]["bound"])


def _tile(label: str, value: str, unit: str, basis: str) -> dict[str, str]:
    return {"label": label, "value": value, "unit": "" if value == DASH else unit, "basis": basis}


def reward_basis(progress: Mapping[str, Any], recent: list[float]) -> str:
    """Basis of the reward tile: change from the start, and in the last 20 steps."""
    now, first = progress["reward"], progress["reward_first"]
    if now is None:
        return "no step trained yet"
    parts = [signed(now - first)] if first is not None and len(recent) > 1 else []
    if len(recent) > 20:
        parts.append(f"{signed(recent[-1] - recent[-21])} in 20")
    return ", ".join(parts) or "first step"


def changed(run: Mapping[str, Any], template: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """Values a person set for this run, name and seed aside. `template`: what its template resolves to, if it has one.

    A document that is sent whole also writes what holds without a word: that is no change.
    """
    plain, told = dict(leaves(template or {})), _told(run["spec"])
    own = [(where, value) for where, value in leaves(run["spec"]) if run["sources"].get(where) == "user"]
    found = [(at, value) for at, value in own if (plain[at] != value if at in plain else at in told)]
    shown = [(where, value) for where, value in found if where not in ("/name", "/seed")]
    return [(where.lstrip("/").replace("/", "."), text_of(value)) for where, value in shown]


def _told(document: Mapping[str, Any]) -> set[str]:
    """Return the pointers of values that are not the defaults, and of the types of objects that hold such values."""
    lean = ExperimentSpec.model_validate(document).model_dump(mode="json", exclude_defaults=True)
    told = {where for where, _ in leaves(lean)}
    above = {where[:end] for where in told for end in range(len(where) + 1) if where[end : end + 1] in ("", "/")}
    return told | {f"{where}/type" for where in above}


def config_groups(run: Mapping[str, Any], only: str = "") -> list[dict[str, Any]]:
    """The resolved specification by top-level section, each value with its source."""
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in ("run", *ExperimentSpec.model_fields)}
    for where, value in leaves(run["spec"]):
        source = run["sources"].get(where, "default")
        if only and source != only:
            continue
        top, _, rest = where.lstrip("/").partition("/")
        line = {"path": (rest or top).replace("/", "."), "value": text_of(value), "source": source}
        groups[top if rest else "run"].append(line)
    return [{"name": name, "rows": rows} for name, rows in groups.items() if rows]


def text_of(value: Any) -> str:
    """Write a value of a specification as YAML would."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{', '.join(text_of(one) for one in value)}]"
    return str(value)


def account(chart: Timeline, agents: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Device seconds by policy and phase, and where held time went, largest first."""
    by_policy = {agent["policy"]: agent for agent in reversed(agents)}
    rows: list[dict[str, Any]] = []
    for policy, phases in sorted(chart.seconds.items()):
        busy = sum(s for phase, s in phases.items() if phase in BUSY)
        rows.append(
            {
                "policy": policy or "no policy",
                "agent": by_policy.get(policy),
                "rollout": phases.get("rollout", 0.0) + phases.get("eval", 0.0),
                "train": phases.get("train", 0.0) + phases.get("step", 0.0),
                "other": sum(phases.values()) - busy,
                "share": sum(phases.values()) / chart.held if chart.held else 0.0,
            }
        )
    held = chart.held or 1.0
    totals = {
        "Rollout": sum(row["rollout"] for row in rows),
        "Train": sum(row["train"] for row in rows),
        "Load, bind, save": sum(row["other"] for row in rows),
        "Idle": chart.idle,
    }
    causes = sorted(totals.items(), key=lambda item: -item[1])
    left, parts = 0.0, []
    for index, (name, seconds) in enumerate(causes):
        share = 100.0 * seconds / held
        swatch = ("k1", "k2", "q2", "q1")[index]
        parts.append(
            {"name": name, "seconds": seconds, "share": share / 100, "x": left, "width": share, "swatch": swatch}
        )
        left += share
    return {"rows": rows, "parts": parts, "idle_share": chart.idle / held, "held": chart.held, "any": bool(chart.held)}


def planned(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What was predicted of a run beside what it takes, as rows of words; None when no plan predicted it."""
    if found is None:
        return None
    titles = {
        "step_s": ("Time per step", duration),
        "utilisation.engine": ("Engines busy", _share),
        "utilisation.trainer": ("Trainers busy", _share),
        "hours": ("Whole run", lambda hours: duration(3600.0 * hours)),
    }
    rows = [
        {
            "title": title,
            "range": f"{write(row['low'])} to {write(row['high'])}",
            "likely": write(row["likely"]),
            "actual": write(row["actual"]),
            "within": row["within"],
        }
        for row in found["compared"]
        for title, write in [titles[row["name"]]]
    ]
    actual = found["actual"]
    over = f"over its last {plural(actual['steps'], 'step')}; the first steps include start-up" if actual else ""
    basis = over or "Available after the second step."
    return {"rows": rows, "basis": basis, "why": found["predicted"]["why"]}


def _share(share: float) -> str:
    return f"{number(100 * share, 0 if share >= 0.1 else 1)} %"
