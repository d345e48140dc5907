"""A reward is a function of one ended episode, which a process of its own calls; see the docs on rewards."""

from typing import Any


def scaled(played: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    factor = settings["factor"]
    scores = {role: factor * score for role, score in played["scores"].items()}
    return {"scores": scores, "team_score": factor * played["team_score"], "facts": {"factor": factor}}
