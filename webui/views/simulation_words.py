"""What pages say of a simulation: rows, the table of figures, what each figure means. Pure: values in, values out."""

from collections.abc import Mapping
from typing import Any

from flexmarl.simulator.reporting.report import CAUSES, EXPLAINED
from webui.figures.simulated import MEANS, WORDS, word_of
from webui.formats import duration, number, percent, plural, signed

COLUMNS = (
    ("step_s", "Step, s", False),
    ("tokens_s", "Tokens/s", True),
    ("engine_busy", "Engines busy", True),
    ("trainer_busy", "Trainers busy", True),
    ("wasted_share", "Wasted", False),
    ("lag", "Lag, versions", False),
    ("swaps", "Swaps", False),
    ("moves", "Moves", False),
)
"""(figure, head, more is better)."""
MEANINGS = (
    ("Step", MEANS["step_s"]),
    ("Relative to best", "Step time divided by that of the fastest preset in the table."),
    ("Tokens/s", MEANS["tokens_s"]),
    ("Engines busy, trainers busy", MEANS["busy"]),
    ("Wasted", MEANS["wasted"]),
    ("Lag, versions", MEANS["lag"]),
    (
        "Swaps, moves",
        "Policies that trainers suspended, and engine slots reassigned to another policy, in the window.",
    ),
    ("±", "Standard deviation over seeds. For one seed, every preset gets the same replies and environments."),
)
CAUSE_WORDS = tuple((WORDS[cause], EXPLAINED[cause]) for cause in CAUSES)
REASONS = {
    "time_limit": "Timed out",
    "gave_up": "Abandoned",
    "no_end": "No preset completed its steps",
    "refused": "Refused",
    "too_little_recorded": "Too little is recorded",
    "fault": "Simulator error",
}
FAULT = "fault"
HEAD_MEANS = {
    "step_s": MEANS["step_s"],
    "tokens_s": MEANS["tokens_s"],
    "engine_busy": MEANS["busy"],
    "trainer_busy": MEANS["busy"],
    "wasted_share": MEANS["wasted"],
    "lag": MEANS["lag"],
    "swaps": MEANINGS[6][1],
    "moves": MEANINGS[6][1],
}
AGAIN = ("workload", "run", "presets", "steps", "warm_up", "seeds")
"""Of a request: what the form shows of it as it is."""
FAR_OFF = 0.25
"""A replay whose time per step is further off than this share explains its run badly."""
KINDS = {"comparison": "comparison", "what_if": "what-if"}


def next_step(simulation: Mapping[str, Any]) -> str:
    """What to do about a simulation that failed or was cancelled."""
    if simulation["reason"] == FAULT:
        return f"The request is not the cause. Report the id {simulation['id']}."
    if simulation["kind"] == "what_if":
        return "Start it again on the What-if page of its run."
    return "“Edit and rerun” opens the form with these values."


def row(simulation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a simulation as lists and headers show it."""
    progress = simulation["progress"]
    return {
        **simulation,
        "kind_word": KINDS[simulation["kind"]],
        "reason_word": REASONS.get(simulation["reason"], ""),
        "pill": {"status": simulation["state"], "reason_text": simulation["reason_text"]},
        "open": simulation["finished_at"] is None,
        "share": progress["done"] / progress["total"] if progress["total"] else 0.0,
    }


def as_asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as the form shows it."""
    kept = {name: request[name] for name in AGAIN if name in request}
    return kept | {"changes": [f"{path}={_plain(value)}" for path, value in request.get("changes", {}).items()]}


def asked(simulation: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List what was asked for, in words."""
    request = simulation["request"]
    said = [
        (number(request.get("steps")), "steps" if request.get("steps") != 1 else "step"),
        (number(request.get("warm_up")), "before these"),
        (number(request.get("seeds")), "seeds" if request.get("seeds") != 1 else "seed"),
    ]
    return [*said, *((path, _plain(value)) for path, value in request.get("changes", {}).items())]


def ordered(presets: Mapping[str, Any], ordering: str) -> list[tuple[str, Any]]:
    """Order the presets by a figure (`-` in front: the most first); those without figures come last."""
    key, backwards = ordering.lstrip("-"), ordering.startswith("-")
    if key not in {name for name, _, _ in COLUMNS}:
        key, backwards = "step_s", False

    def place(item: tuple[str, Any]) -> tuple[bool, float]:
        figures = item[1]["figures"]
        mean = figures[key]["mean"] if figures else 0.0
        return not figures, -mean if backwards else mean

    return sorted(presets.items(), key=place)


def table(presets: Mapping[str, Any], ordering: str) -> list[dict[str, Any]]:
    """Return a row per preset with its figures as text; the best of a column is marked. None made its steps: no row."""
    lines = ordered(presets, ordering) if any(one["figures"] for one in presets.values()) else []
    means = {name: [one["figures"][name]["mean"] for _, one in lines if one["figures"]] for name, _, _ in COLUMNS}
    best = {name: (max if more else min)(means[name]) for name, _, more in COLUMNS if means[name]}
    found = []
    for preset, one in lines:
        cells = [_cell(name, one["figures"][name], best[name]) for name, _, _ in COLUMNS] if one["figures"] else []
        against = one["figures"]["step_s"]["mean"] / best["step_s"] if one["figures"] and best["step_s"] else None
        found.append(
            {
                "preset": preset,
                "cells": cells,
                "against": None if against is None else f"{number(against, 2)}x",
                "error": one["error"],
                "why": _why(one["idle"]) if one["figures"] else "",
            }
        )
    return found


def _cell(name: str, spread: Mapping[str, float], best: float) -> dict[str, Any]:
    mean, sd = spread["mean"], spread["sd"]
    shares = name.endswith(("_busy", "_share"))
    digits = {"step_s": 1 if mean >= 10.0 else 2, "lag": 2}.get(name, 0)
    text = percent(mean, 1) if shares else number(mean, digits)
    wide = percent(sd, 1) if shares else number(sd, digits)
    wide = wide if sd >= 0.5 * 10.0**-digits else ""
    return {
        "name": name,
        "head": next(head for own, head, _ in COLUMNS if own == name),
        "text": text,
        "sd": f"±{wide}" if wide and name in ("step_s", "tokens_s") else "",
        "best": mean == best and name in ("step_s", "tokens_s", "engine_busy", "trainer_busy"),
    }


def _why(idle: Mapping[str, Mapping[str, float]]) -> str:
    """The largest cause for which engines stood still."""
    engine = idle.get("engine", {})
    if not engine:
        return ""
    cause = max(engine, key=lambda name: engine[name])
    return f"{word_of(cause, 'engine')} {percent(engine[cause])}"


def heads(ordering: str) -> list[dict[str, str]]:
    """Heads of the table with what a click orders by."""
    now = ordering or "step_s"
    found = []
    for name, head, more in COLUMNS:
        first, other = (f"-{name}", name) if more else (name, f"-{name}")
        sort = {name: "ascending", f"-{name}": "descending"}.get(now, "")
        found.append(
            {"head": head, "means": HEAD_MEANS[name], "sort": sort, "ordering": other if now == first else first}
        )
    return found


def hues(line: Mapping[str, Any]) -> dict[str, int]:
    """Give every policy of a timeline a hue, in the order of their names."""
    policies = sorted({one["policy"] for one in line["intervals"] if one["policy"]})
    return {policy: at % 8 + 1 for at, policy in enumerate(policies)}


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


FITTED = (
    ("engine_tokens_s", "Engine throughput while generating, tokens/s", 0),
    ("replies_at_once", "Concurrent replies on an engine", 1),
    ("engine_token_s", "Time per token, single reply, s", 4),
    ("engine_load_s", "Weight load on an engine, s", 3),
    ("turn_wait_s", "Turn overhead outside the engine, s", 3),
    ("trainer_token_s", "Training time per token, s", 6),
    ("trainer_micro_batch_s", "Fixed time per micro-batch, s", 3),
    ("trainer_step_s", "Optimizer step, s", 3),
    ("trainer_swap_s", "Policy swap, s", 3),
)


def told(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what a what-if found, in words; None for other simulations."""
    found = (result or {}).get("what_if")
    if not found:
        return None
    return record(found) | {
        "advice": [
            {
                **one,
                "gain_text": f"{signed(100 * one['gain'], 1)} %",
                "range": _span(one["gain_least"], one["gain_most"]),
                "lines": [_broken(f"{path}={_plain(value)}") for path, value in one["changes"].items()],
            }
            for one in found["advice"]
        ],
    }


def _span(least: float, most: float) -> str:
    """Write the ends of a gain; nothing where both read alike."""
    ends = [signed(100 * least, 1), signed(100 * most, 1)]
    return "" if ends[0] == ends[1] else f"{' to '.join(ends)} %"


def _broken(change: str) -> list[str]:
    """Cut a change where a line may end: behind each dot and underscore, and before its value."""
    return change.replace(".", ".\n").replace("_", "_\n").replace("=", "\n=").split("\n")


def record(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was played again of a run, and how far the replay is off, in words."""
    error = found["error"]
    return {
        "replay": duration(found["replay_step_s"]) if found["replay_step_s"] else "",
        "actual": duration(found["actual_step_s"]),
        "error_text": "" if error is None else f"{signed(100 * error, 0)} %",
        "far_off": error is not None and abs(error) > FAR_OFF,
        "basis": f"{plural(found['episodes'], 'episode')} of {plural(found['steps'], 'train step')} were replayed.",
        "fitted": [(word, number(found["fitted"][name], digits)) for name, word, digits in FITTED],
    }
