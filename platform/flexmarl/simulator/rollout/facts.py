"""Facts of a simulated run, made of values that nobody needs to look at again: they never leave the process.

Validation would be most of what a fact costs. Invariants: each is what its class would make of the same values,
defaults included (the tests build every one both ways); whoever calls this brings values of the declared types.
"""

from collections.abc import Mapping

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.base import known
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef

_SAMPLE = {"role", "turn", "tokens", "segments"}
_DEFAULTS = {"by_clock", "solved", "wasted", "breaks", "branch", "surprisals", "shared"}
_OUTCOME = set(EpisodeOutcome.model_fields) - _DEFAULTS
_SETTLED = set(e.GroupSettled.model_fields) - {"kind"}
_DEMAND = set(e.DemandReported.model_fields) - {"kind"}


def sample(role: str, turn: int, tokens: int, segments: tuple[int, ...] = ()) -> SampleRef:
    """Return a row of an episode."""
    return known(
        SampleRef,
        {"role": role, "turn": turn, "tokens": tokens, "reward": 0.0, "segments": segments, "follows": 0},
        _SAMPLE,
    )


def outcome(
    member: int, attempt: int, why: str, replaced: bool, score: float, scores: dict[str, float],
    samples: tuple[SampleRef, ...], duration_s: float,
) -> EpisodeOutcome:  # fmt: skip
    """Return how an attempt ended; `why` is empty when it finished."""
    values = {
        "member": member, "attempt": attempt, "status": EpisodeStatus.FAILED if why else EpisodeStatus.FINISHED,
        "reason": why, "by_clock": False, "replaced": replaced, "scores": scores, "team_score": score, "solved": False,
        "samples": samples, "wasted": 0, "breaks": {}, "duration_s": duration_s,
        "answer": "" if why else "simulated", "shared": False, "facts": {},  # all agree: a simulation is about time
        "branch": None, "surprisals": (),
    }  # fmt: skip
    return known(EpisodeOutcome, values, _OUTCOME)


def settled(
    no: int, command: c.PlayGroups, draw: int, began: float, now: float, episodes: tuple[EpisodeOutcome, ...],
    versions: dict[str, int], part: bool,
) -> e.GroupSettled:  # fmt: skip
    """Return that a group, or a part of one, is settled."""
    values = {
        "kind": "group_settled", "draw": draw, "origin": command.origin, "epoch": command.epoch, "command_no": no,
        "episodes": episodes, "started_at": began, "finished_at": now, "versions": versions, "part": part,
    }  # fmt: skip
    return known(e.GroupSettled, values, _SETTLED)


def demand(
    policies: Mapping[str, e.RequestedTurns], depths: dict[int, int], queued: dict[int, int], cache: dict[int, int]
) -> e.DemandReported:
    """Return what the run's rollout workers ask for."""
    values = {
        "kind": "demand_reported", "worker": "virtual", "policies": policies, "engines": depths, "queued": queued,
        "cache": cache,
    }  # fmt: skip
    return known(e.DemandReported, values, _DEMAND)
