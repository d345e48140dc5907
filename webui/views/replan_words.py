"""Words of a run's plan while it goes on: what it measures beside what was assumed, and what it is proposed. Pure."""

from collections.abc import Mapping
from typing import Any

from flexmarl.controlplane.simulations.replan_words import rate_name
from webui.formats import duration, number

STATES = {
    "off": ("", "ban", "Not compared"),
    "watching": ("ok", "circle-check", "As it is"),
    "proposed": ("wn", "git-compare", "Other devices proposed"),
    "applied": ("ok", "arrow-right", "Goes on elsewhere"),
}
"""State -> (tone, icon, word)."""
BECAME = {"withdrawn": "Withdrawn", "dismissed": "Dismissed", "applied": "Applied"}


def told(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the page shows; None for a run that no plan predicted and that was never looked at."""
    if row["reason"] == "no_plan":
        return None
    tone, icon, word = STATES[row["state"]]
    return {
        "tone": tone,
        "icon": icon,
        "word": word,
        "text": row["reason_text"],
        "band": f"{100 * row['dead_band']:.0f} %",
        "rates": [_rate(one) for one in row["rates"]],
        "proposal": _proposal(row["proposal"]) if row["proposal"] else None,
        "open": row["state"] == "proposed",
        "past": [{"word": BECAME[one["became"]], **_proposal(one)} for one in row["past"]],
        "into": row["into"],
        "basis": "the plan" if row["assumed_from"] == "plan" else "what was measured before",
    }


def _rate(one: Mapping[str, Any]) -> dict[str, Any]:
    name = rate_name(one["name"], one["of"])
    return {
        "name": name[:1].upper() + name[1:],
        "assumed": _figure(one["assumed"], one["unit"]),
        "measured": _figure(one["measured"], one["unit"]),
        "ratio": "" if one["ratio"] is None else f"{number(one['ratio'], 2)} x",
        "outside": one["outside"],
    }


def _figure(value: float, unit: str) -> str:
    return duration(value) if unit == "s" else f"{number(value, 0 if value >= 100 else 1)} {unit}"


def _proposal(one: Mapping[str, Any]) -> dict[str, Any]:
    changes = [
        f"{change['pointer'].rpartition('/')[2]} {change['before']} \u2192 {change['value']}"
        for change in one["changes"]
    ]
    return {
        "changes": changes,
        "now": duration(one["now_step_s"]),
        "then": f"{duration(one['then_step_s'])} to {duration(one['then_step_s_most'])}",
        "gain": f"{100 * one['gain_least']:.0f} to {100 * one['gain']:.0f} %",
        "cost": duration(one["cost_s"]),
        "saves": duration(one["saves_s"]),
        "left": one["steps_left"],
        "checkpoint": one["checkpoint"],
        "why": one["why"],
        "refused": one.get("refused", ""),
        "at": one["at"],
    }
