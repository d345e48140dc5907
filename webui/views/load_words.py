"""Sentences and names of the Load page. Pure: rows in, words out."""

from collections.abc import Mapping, Sequence
from typing import Any

from webui.formats import duration, number, plural

ENGINE_STATES = {
    "registered": ("", "clock", "Registered", "Its device is leased; its process has not been started yet"),
    "warming": ("", "progress", "Warming", "Its process was started and does not answer yet"),
    "syncing": ("", "refresh", "Syncing", "It responds, and is loading the weights that its next requests need"),
    "active": ("ok", "circle-check", "Active", "It holds all the weights it serves"),
    "draining": ("wn", "player-stop", "Draining", "Its device is being released"),
    "gone": ("", "ban", "Gone", "Its lease has ended"),
}
"""State -> (tone, icon, word, meaning), in the order of a life."""

DOUBTS = {
    "host_silent": "its device worker has not renewed the lease in time",
    "node_silent": "its node has missed its heartbeats",
    "engine_silent": "it no longer reports to its node",
}
"""Why an engine is suspect -> words."""

MOVE_CAUSES = {
    "waiting": "waited with no engine",
    "disparity": "had the longer queue",
    "": "the slot was free",
}
"""Why a place was given -> words."""

SWAPS = {
    "bind": ("bound to", "Created, or restored from its committed version"),
    "suspend": ("suspended from", "Suspended with its accumulated gradients"),
    "resume": ("resumed on", "Resumed with its accumulated gradients"),
    "sleep": ("put to sleep on", "Its weights and KV caches were released: trainers have the device now"),
    "wake": ("woken on", "Trainers released the device: it loads the published weights"),
}
"""What became of a policy on a trainer device, or of an engine whose device trainers share -> (words, meaning)."""

LEFT_CAUSES = {
    "aborted": (
        "handed back",
        "The engine ended it: a policy was unloaded, weights were updated, or the engine stopped",
    ),
    "silent": ("silence", "The engine was silent for about five seconds while another one could answer"),
    "engine_unreachable": ("connection lost", "The engine died, or the connection to it broke"),
    "cut_off": ("cut off", "The response ended before the reply was complete"),
    "not_aligned": ("misaligned", "Tokens and log-probabilities did not match, and were discarded"),
}
"""Why a reply left an engine -> (words, meaning)."""

UNEVEN = 1.5
"""Skew that is worth a sentence."""


def look_of(engine: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return how an engine's state is shown; a doubt stands in the state's place, which its hover tells."""
    state = ENGINE_STATES[engine["state"]]
    if not engine["suspect"]:
        return state
    return "wn", "alert-triangle", "Suspect", f"{DOUBTS[engine['suspect']]}; last known {state[2].lower()}"


def version_text(engine: Mapping[str, Any], policy: str) -> str:
    """Say which versions of a policy an engine holds and loads."""
    held = [_versions(one) for one in engine["serves"] if one["policy"] == policy]
    loads = [f"loads v{one['version']}" for one in engine["loading"] if one["policy"] == policy]
    return ", ".join([*held, *loads])


def _versions(served: Mapping[str, Any]) -> str:
    former = served["former_version"]
    return f"v{served['version']}" + (f", v{former}" if former is not None else "")


def sentence(load: Mapping[str, Any]) -> str:
    """Say what the load comes to now."""
    if not load["live"]:
        return "The run has ended: engines receive no requests."
    alive = [row for row in load["engines"] if row["state"] not in ("gone", "draining")]
    if not alive:
        return "No engine yet: turns wait until the run has devices." if not load["engines"] else "No engine is left."
    policies = load["policies"]
    hungry = max(policies, key=lambda one: one["waiting"], default=None)
    if hungry is None or not hungry["waiting"]:
        flying = sum(one["in_flight"] for one in policies)
        return (
            f"Every turn is at an engine: {plural(flying, 'turn')} on {plural(len(alive), 'engine')}."
            if flying
            else (f"{plural(len(alive), 'engine')}, no requests now.")
        )
    if not hungry["engines"]:
        return f"{hungry['policy']} waits: {plural(hungry['waiting'], 'turn')}, and no engine serves it."
    return (
        f"{hungry['policy']} waits most: {plural(hungry['waiting'], 'turn')} for "
        f"{plural(hungry['engines'], 'engine')}, where {plural(hungry['in_flight'], 'reply', 'replies')} "
        f"{'is' if hungry['in_flight'] == 1 else 'are'} being generated."
    )


def detail(load: Mapping[str, Any]) -> str:
    """Say how even the engines' queues are, and which of them are doubted."""
    parts = []
    if load["skew"] is not None and load["skew"] >= UNEVEN:
        parts.append(f"The busiest engine has {number(load['skew'], 1)} times the mean queue.")
    doubted = [row for row in load["engines"] if row["suspect"]]
    if doubted:
        names = ", ".join(row["device_id"] for row in doubted[:3])
        parts.append(f"{plural(len(doubted), 'engine is', 'engines are')} suspect: {names}.")
    if load["live"] and load["longest"]:
        oldest = load["longest"][0]
        parts.append(f"The oldest turn, of {oldest['role']}, has waited {duration(oldest['age_s'])}.")
    return " ".join(parts)


def states_text(states: Mapping[str, int]) -> str:
    """Count engines by state, in the order of a life."""
    return ", ".join(f"{states[name]} {ENGINE_STATES[name][2].lower()}" for name in ENGINE_STATES if states.get(name))


def chosen(rows: Sequence[Mapping[str, Any]], state: str, policy: str) -> list[Mapping[str, Any]]:
    """Narrow engines by what they are and whom they serve or load."""
    return [
        row
        for row in rows
        if (not state or row["state"] == state or (state == "suspect" and row["suspect"]))
        and (not policy or any(one["policy"] == policy for one in (*row["serves"], *row["loading"])))
    ]
