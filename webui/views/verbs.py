"""What people may ask of a run, in words: verbs with their consequence, what is pending, how a run rests. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from webui.formats import duration, plural

BEGUN = {
    "start": "It queues for its devices and starts when they are free.",
    "resume": "It goes on with step {step}.",
    "resume_elsewhere": "It asks for devices again, loads its committed weights and goes on with step {step}.",
    "retry": "A new attempt from the committed versions; step {step} is played anew.",
    "retry_over": "A new attempt from the beginning: no version was committed yet.",
    "stop": "It ends after step {step} with a checkpoint. It cannot be resumed.",
    "kill": "It ends at once. What step {step} has played so far is dropped; committed steps stay.",
}
DRAIN = "It finishes step {step} first, so nothing is thrown away. {held}"
FREEZE = (
    "It stops at once. Running episodes are abandoned and played again on resume; "
    "groups that settled and gradients stay. {held}"
)
FREE = "It stops at once and gives its devices back; resume asks for others."


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to ask for a verb. `body` goes with the request."""

    verb: str
    label: str
    icon: str
    text: str
    primary: str = ""
    confirm: bool = False
    body: dict[str, Any] = field(default_factory=dict)


PENDING = {
    "start": "Starting: the request is with the driver",
    "pause": "Pausing at the end of step {step}",
    "resume": "Resuming at step {step}",
    "stop": "Stopping at the end of step {step}",
    "kill": "Killing",
    "retry": "Starting attempt {attempt}",
}
_STATUS_WORDS = {"pausing": "pause", "resuming": "resume", "stopping": "stop"}
FREEZING = "Freezing: the trainer finishes what it was given"


def choices(run: Mapping[str, Any]) -> list[Choice]:
    """Every way to ask for every verb, in the order of menus."""
    step = run["step"] + 1
    held = _held(run)
    elsewhere = run["status"] == "paused" and run["reason"] == "devices_given_back"
    trained = run["step"] > 0 or any(agent["version"] for agent in run["agents"])

    def text(name: str) -> str:
        return BEGUN[name].format(step=step)

    return [
        Choice("start", "Start", "player-play", text("start")),
        Choice("pause", "Pause", "player-pause", DRAIN.format(step=step, held=held)),
        Choice("pause", "Freeze", "snowflake", FREEZE.format(held=held), body={"mode": "freeze"}),
        Choice("pause", "Freeze and free devices", "clock-pause", FREE, body={"mode": "freeze", "hold_s": 0}),
        Choice("resume", "Resume", "player-play", text("resume_elsewhere" if elsewhere else "resume")),
        Choice("retry", "Retry", "refresh", text("retry" if trained else "retry_over")),
        Choice("stop", "Stop", "player-stop", text("stop"), f"Stop after step {step}", confirm=True),
        Choice("kill", "Kill", "ban", text("kill"), "Kill now", confirm=True),
    ]


def _held(run: Mapping[str, Any]) -> str:
    seconds = run["spec"]["resources"].get("hold_s", 900.0)
    if seconds is None:
        return "Devices stay held."
    return f"Devices stay held for {duration(seconds)}." if seconds else "Devices go back at once."


def verbs(run: Mapping[str, Any], *, may_act: bool) -> list[dict[str, Any]]:
    """Every choice with its consequence in words; one that is not possible stays, with the reason."""
    found = []
    for choice in choices(run):
        legal = choice.verb in run["allowed_actions"]
        why = "" if legal else f"Not possible while {run['status']}."
        if not may_act:
            why = "Only its owner and operators may do this."
        found.append(
            {
                "verb": choice.verb,
                "label": choice.label,
                "icon": choice.icon,
                "text": choice.text,
                "primary": choice.primary or choice.label,
                "body": json.dumps(choice.body) if choice.body else "",
                "enabled": legal and may_act,
                "why": why,
                "confirm": choice.confirm,
                "title": f"{choice.label} {run['key']}?",
                "leads": choice.verb in ("start", "resume", "retry") and legal and may_act,
            }
        )
    return found


def pending(run: Mapping[str, Any]) -> str:
    """What has been asked for and has not happened yet; never the wished state."""
    if run["status"] == "pausing" and not run["pending_verb"] and run["progress"]["frozen"]:
        return FREEZING
    verb = run["pending_verb"] or _STATUS_WORDS.get(run["status"], "")
    return PENDING.get(verb, "").format(step=run["step"] + 1, attempt=run["attempt"] + 1)


def resting(run: Mapping[str, Any], now: datetime) -> dict[str, str] | None:
    """The strip below the header of a paused run: what it keeps, and until when it keeps its devices."""
    if run["status"] != "paused":
        return None
    parts = []
    progress = run["progress"]
    if progress["frozen"]:
        settled = f"{progress['cohort_groups_settled']} of {plural(progress['cohort_groups'], 'group')}"
        parts.append(f"Frozen in step {run['step'] + 1} with {settled} settled; the others are played again on resume.")
    if run["reason"] == "devices_given_back":
        parts.append("Its devices were given back; resume asks for others.")
    elif progress["release_at"] is not None:
        left = max(0.0, progress["release_at"] - now.timestamp())
        parts.append(f"Its devices go back in {duration(left)} unless it is resumed.")
    else:
        parts.append("Its devices stay held until it is resumed or stopped.")
    return {"tone": "wn", "icon": "player-pause", "word": "Paused", "text": " ".join(parts)}
