"""What a trajectory list is asked for: the values of its parameters as the store's filter and order.

The API and the pages name the parameters alike, so that a page's address says which call made it.
"""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.trajectories.trajectories import cohort_of, labelled
from flexmarl.language.renderer import Break
from flexmarl.store.reads.episodes import ANY, EpisodeFilter, Order, Ordering

BREAKS = (*Break, ANY)
"""Causes by which a chain may have broken."""
ORDERINGS: dict[str, Order] = {"draw": "draw", "reward": "score", "tokens": "tokens", "duration_s": "seconds"}
"""Names of the orders towards people; with a minus the largest first."""


def wanted(run: Run, values: Mapping[str, Any]) -> EpisodeFilter:
    """Read a filter. Raises ValidationProblem where parameters do not go together."""
    origin = Origin(values.get("origin", Origin.TRAIN))
    step = values.get("step")
    role_score = _pair(values, "agent_reward")
    if ("agent" in values) != (role_score != (None, None)):
        name = "agent" if "agent" not in values else "agent_reward__gte"
        raise _refuse(name, f"{name} is missing: agent and a bound of its score must be sent together.")
    if "said_by" in values and "said" not in values:
        raise _refuse("said", "said is missing: send the words that said_by said.")
    made = EpisodeFilter(
        origin=origin,
        cohort=None if step is None else cohort_of(origin, step),
        draw=values.get("draw"),
        status=EpisodeStatus(values["status"]) if "status" in values else None,
        solved=values.get("solved"),
        score=_pair(values, "reward"),
        turns=_pair(values, "turns"),
        tokens=_pair(values, "tokens"),
        seconds=_pair(values, "duration_s"),
        role=values.get("agent", ""),
        role_score=role_score,
        pins=dict(_pin(text) for text in values.get("version", ())),
        text=values.get("search", ""),
        said=values.get("said", ""),
        speaker=values.get("said_by", ""),
        broken=values.get("broken", ""),
    )
    return labelled(run, made, values["label"]) if "label" in values else made


def ordering(values: Mapping[str, Any]) -> Ordering:
    """Read the order."""
    name = str(values.get("ordering", "-draw"))
    return Ordering(ORDERINGS[name.lstrip("-")], name.startswith("-"))


def _pair(values: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    return values.get(f"{name}__gte"), values.get(f"{name}__lte")


def _pin(text: str) -> tuple[str, int]:
    policy, _, version = text.rpartition(":")
    if not policy or not version.isascii() or not version.isdigit() or len(version) > 9:
        raise _refuse("version", f"version={text} is invalid: send <policy>:<version>, such as solver:12.")
    return policy, int(version)


def _refuse(name: str, detail: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(name, "wrong_type", detail, "", "query")])
