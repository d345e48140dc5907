"""Which rows of an episode group share a baseline.

The histories of two members differ after the first turn, so these keys are loose: rows are compared by seat (and turn
index), not by byte-identical prompts.
"""

from collections.abc import Callable, Mapping

from flexmarl.contracts.wire import SampleRef

GroupKey = Callable[[SampleRef, bool], tuple[str, int]]
"""(sample, per turn?) -> key inside the episode group."""


def episode_group(sample: SampleRef, per_turn: bool) -> tuple[str, int]:
    """Compare a role's episodes with each other, or its calls of the same turn index."""
    return (sample.role, sample.turn if per_turn else -1)


def agent_turn(sample: SampleRef, per_turn: bool) -> tuple[str, int]:
    """Compare a role's calls of the same turn index, whatever they are paid by."""
    return (sample.role, sample.turn)


def team(sample: SampleRef, per_turn: bool) -> tuple[str, int]:
    """Compare all roles with each other: one baseline for the whole team."""
    return ("", sample.turn if per_turn else -1)


GROUP_KEYS: Mapping[str, GroupKey] = {"episode_group": episode_group, "agent_turn": agent_turn, "team": team}
