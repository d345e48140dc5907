"""The part of a run's state that no sample depends on: what lists show of the past."""

from dataclasses import dataclass, field

Score = tuple[float, float]
"""Solved share and team score of an evaluation."""


@dataclass(slots=True)
class History:
    """What lists and headers show of the past."""

    archive: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """Policy -> age in versions -> groups and rows of the archive after the last step."""
    imported: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Policy -> age in versions, groups and rows of what is in the archive of another run; none: left out."""
    step_seconds: list[float] = field(default_factory=list)
    reward: float | None = None
    reward_first: float | None = None
    role_reward: dict[str, float] = field(default_factory=dict)
    eval_last: tuple[float, float] | None = None
    """Solved share and team score of the last evaluation."""
    eval_best: tuple[float, float] | None = None
    """The same of the best evaluated vector."""
    eval_failure: str = ""
    """Why an episode of the last evaluation failed, where none finished."""
    eval_step: int = -1
    """Step of the last finished evaluation."""
    checkpoint_step: int = -1
    """Step of the last exported last vector."""
    best: list[tuple[int, float, float]] = field(default_factory=list)
    """Step, solved share and team score of the best evaluations, best first, as many as checkpoints are kept for it."""
    cuts: dict[int, Score | None] = field(default_factory=dict)
    """Step of each checkpoint that the rules keep, with what its evaluation said."""
