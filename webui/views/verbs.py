"""What people may ask of a run, in words: verbs with their consequence, what is pending, how a run rests. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flexmarl.contracts.status import SHOWN_TERMINAL
from webui.formats import duration, plural
from webui.views.bulk import NOT_ARCHIVED

BEGUN = {
    "start": "The run is queued and starts when its devices are free.",
    "resume": "The run continues with step {step}.",
    "resume_elsewhere": "The run requests devices again, loads its committed weights and continues with step {step}.",
    "retry": "A new attempt starts from the committed versions; step {step} is played again.",
    "retry_over": "A new attempt starts from the beginning: no version was committed yet.",
    "stop": "The run ends after step {step} with a checkpoint. It cannot be resumed.",
    "kill": "The run ends immediately. Episodes of step {step} are discarded; committed steps are kept.",
}
DRAIN = "The run finishes step {step} first, so no work is lost. {held}"
FREEZE = (
    "The run pauses immediately. Running episodes are abandoned and replayed on resume; "
    "settled groups and gradients are kept. {held}"
)
FREE = "The run pauses immediately and releases its devices; resume requests new ones."


@dataclass(frozen=True, slots=True)
class VerbChoice:
    """One way to ask for a verb. `body` goes with the request."""

    verb: str
    label: str
    icon: str
    text: str
    primary: str = ""
    confirm: bool = False
    body: dict[str, Any] = field(default_factory=dict)


PENDING = {
    "start": "Starting: waiting for the driver",
    "pause": "Pausing at the end of step {step}",
    "resume": "Resuming at step {step}",
    "stop": "Stopping at the end of step {step}",
    "kill": "Killing",
    "retry": "Starting attempt {attempt}",
}
_STATUS_WORDS = {"pausing": "pause", "resuming": "resume", "stopping": "stop"}
FREEZING = "Freezing: the trainer finishes its current work"


FILED = ("archive", "restore")
WHY_NOT = {"archive": NOT_ARCHIVED}
"""Verb -> why it is not possible, where the state alone does not say it."""


def choices(run: Mapping[str, Any]) -> list[VerbChoice]:
    """Every way to ask for every verb, in the order of menus."""
    step = run["step"] + 1
    held = _held(run)
    elsewhere = run["status"] == "paused" and run["reason"] == "devices_given_back"
    trained = run["step"] > 0 or any(agent["version"] for agent in run["agents"])

    def text(name: str) -> str:
        return BEGUN[name].format(step=step)

    return [
        VerbChoice("start", "Start", "player-play", text("start")),
        VerbChoice("pause", "Pause", "player-pause", DRAIN.format(step=step, held=held)),
        VerbChoice("pause", "Freeze", "snowflake", FREEZE.format(held=held), body={"mode": "freeze"}),
        VerbChoice("pause", "Freeze and free devices", "clock-pause", FREE, body={"mode": "freeze", "hold_s": 0}),
        VerbChoice("resume", "Resume", "player-play", text("resume_elsewhere" if elsewhere else "resume")),
        VerbChoice("retry", "Retry", "refresh", text("retry" if trained else "retry_over")),
        VerbChoice("stop", "Stop", "player-stop", text("stop"), f"Stop after step {step}", confirm=True),
        VerbChoice("kill", "Kill", "ban", text("kill"), "Kill now", confirm=True),
    ]


def _filing(run: Mapping[str, Any]) -> list[VerbChoice]:
    """Taking a run out of the lists, or putting it back."""
    if run["archived_at"]:
        return [VerbChoice("restore", "Restore", "archive-off", "It returns to the lists.")]
    return [VerbChoice("archive", "Archive", "archive", "It leaves the lists. Restoring brings it back.", confirm=True)]


def _may_be_filed(run: Mapping[str, Any]) -> bool:
    ended = run["status"] in SHOWN_TERMINAL or run["status"] == "draft"
    return bool(run["archived_at"]) or (ended and not run["pending_verb"])


def _held(run: Mapping[str, Any]) -> str:
    seconds = run["spec"]["resources"].get("hold_s", 900.0)
    if seconds is None:
        return "Devices stay leased."
    return f"Devices stay leased for {duration(seconds)}." if seconds else "Devices are released immediately."


def verbs(run: Mapping[str, Any], *, may_act: bool, may_edit: bool) -> list[dict[str, Any]]:
    """Every choice that the reader may still make, with its consequence; one that is not possible now says why."""
    found = []
    over = run["status"] in SHOWN_TERMINAL
    for choice in [*(choices(run) if may_act else ()), *(_filing(run) if may_edit else ())]:
        legal = choice.verb in run["allowed_actions"] or (choice.verb in FILED and _may_be_filed(run))
        if over and not legal:
            continue  # what has ended will never allow it
        why = "" if legal else WHY_NOT.get(choice.verb, f"Not possible while {run['status']}.")
        found.append(
            {
                "verb": choice.verb,
                "label": choice.label,
                "icon": choice.icon,
                "text": choice.text,
                "primary": choice.primary or choice.label,
                "body": json.dumps(choice.body) if choice.body else "",
                "enabled": legal,
                "why": why,
                "confirm": choice.confirm,
                "title": f"{choice.label} {run['key']}?",
                "leads": choice.verb in ("start", "resume", "retry") and legal,
            }
        )
    return found


def pending(run: Mapping[str, Any]) -> str:
    """What has been asked for and has not happened yet; never the wished state."""
    if run["status"] == "pausing" and not run["pending_verb"] and run["progress"]["frozen"]:
        return FREEZING
    verb = run["pending_verb"] or _STATUS_WORDS.get(run["status"], "")
    last = run["spec"]["budget"]["train_steps"]  # after it only an evaluation and the checkpoint are to come
    return PENDING.get(verb, "").format(step=min(run["step"] + 1, max(last, 1)), attempt=run["attempt"] + 1)


def resting(run: Mapping[str, Any], now: datetime) -> dict[str, str] | None:
    """The strip below the header of a paused run: what it keeps, and until when it keeps its devices."""
    if run["status"] != "paused":
        return None
    parts = []
    progress = run["progress"]
    if progress["frozen"]:
        settled = f"{progress['cohort_groups_settled']} of {plural(progress['cohort_groups'], 'group')}"
        parts.append(f"Frozen in step {run['step'] + 1} with {settled} settled; the others are replayed on resume.")
    if run["reason"] == "devices_given_back":
        parts.append("Its devices were released; resume requests new ones.")
    elif progress["release_at"] is not None:
        left = max(0.0, progress["release_at"] - now.timestamp())
        parts.append(f"Its devices are released in {duration(left)} unless it is resumed.")
    else:
        parts.append("Its devices stay leased until it is resumed or stopped.")
    return {"tone": "wn", "icon": "player-pause", "word": "Paused", "text": " ".join(parts)}
