"""What limits a run, in one sentence: the longest wait of its devices in a window. Pure.

The sentence names who waited, for what, how long and in which window; below a tenth of leased time nothing limits.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flexmarl.controlplane.telemetry.advisor.phrases import name_of, percent, span

LITTLE = 0.1
"""Share of held device time below which idle time is not worth a sentence."""
WORDS = {
    "samples": "Rollout limits this run: its trainers waited {wait} for samples",
    "trainer": "Training limits this run: devices waited {wait} for a trainer",
    "weights": "Publication limits this run: devices waited {wait} for new weights",
    "tail": "The longest episodes limit this run: engines waited {wait} for episodes on other engines",
    "turns": "Environments and rollout workers limit this run: engines waited {wait} between turns",
    "evaluation": "Evaluation limits this run: devices waited {wait} for its episodes",
    "checkpoint": "Checkpoints limit this run: devices waited {wait} for them",
    "handover": "Command dispatch limits this run: devices waited {wait} for commands on their way",
    "decision": "The driver limits this run: devices waited {wait} between commands",
    "starting": "The run is starting: devices were leased {wait} before their first work",
    "paused": "The run was paused: its devices were idle {wait}",
}


def limit_words(account: Mapping[str, Any], rates: Sequence[Mapping[str, Any]], status: str) -> dict[str, Any]:
    """Say what limited the devices of an account, with the figures behind it."""
    window = f"step {account['step']}" if account["step"] is not None else f"the last {span(account['window_s'])}"
    if not account["devices"]:
        text = "No device was leased in this window." if status != "queued" else "The run waits for its devices."
        return {"text": text, "cause": None, "share": None, "basis": window, "detail": ""}
    detail = _detail(account, rates)
    if account["bubble_share"] < LITTLE or not account["causes"]:
        text = f"No bottleneck: devices were busy {percent(account['busy_share'])} of {window}."
        return {"text": text, "cause": None, "share": account["bubble_share"], "basis": window, "detail": detail}
    worst = account["causes"][0]
    waiting = [d for d in account["devices"] if any(c["cause"] == worst["cause"] for c in d["causes"])]
    held = sum(d["held_s"] for d in waiting)
    wait = f"{span(worst['seconds'])} of {span(held)}"
    text = f"{WORDS[worst['cause']].format(wait=wait)}, in {window}."
    return {"text": text, "cause": worst["cause"], "share": worst["share"], "basis": window, "detail": detail}


def _detail(account: Mapping[str, Any], rates: Sequence[Mapping[str, Any]]) -> str:
    """Say how busy engines and trainers were and which policy took most of the engines' time."""
    parts = []
    for use, word in (("engine", "Engines"), ("trainer", "trainers")):
        own = [d for d in account["devices"] if d["use"] == use]
        held = sum(d["held_s"] for d in own)
        if held > 0:
            parts.append(f"{word} were busy {percent(sum(d['busy_s'] for d in own) / held)} of leased time")
    words = name_of(", ".join(parts))
    total = sum(row["rollout_s"] for row in rates)
    top = max(rates, key=lambda row: row["rollout_s"], default=None)
    if top is not None and total > 0 and len([row for row in rates if row["rollout_s"] > 0]) > 1:
        words += f"; {top['policy']} took {percent(top['rollout_s'] / total)} of the engines' work"
    return f"{words}." if words else ""
