"""What the page of the playground reads; it talks through the same routes as any client."""

from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.playground.models_of import Model, ModelNotFound, RunArchived, find
from flexmarl.controlplane.playground.observations import examples
from flexmarl.controlplane.playground.speaking import NoTokenizer, known_words, reply_length, tokenizer_of
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.trajectories.decoding import renderer_of
from flexmarl.store.control import engines

__all__ = ["ModelNotFound", "NoTokenizer", "RunArchived", "agent", "find", "served"]


def agent(model: Model) -> dict[str, Any]:
    """Return how to talk to an agent: its words, observations to begin with, its sampling."""
    return {
        "role": model.role,
        "policy": model.policy,
        "newest": model.version,
        "chat": renderer_of(model.run.no, model.policy) is not None,
        "words": known_words(tokenizer_of(model)),
        "examples": examples(model.run, model.role),
        "max_tokens": reply_length(model),
        "temperature": model.agent["sampling"]["temperature"],
    }


def served(run: Run) -> dict[str, list[int]]:
    """Return which versions of each policy the run's own engines answer for now, newest first."""
    found: dict[str, set[int]] = {}
    for route in engines.routes(store_connection(), run.no):
        for pins in (route.holds, route.former):
            for policy, pin in pins.items():
                found.setdefault(policy, set()).add(pin.version)
    return {policy: sorted(versions, reverse=True) for policy, versions in found.items()}
