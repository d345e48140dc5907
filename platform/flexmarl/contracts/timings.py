"""What the rows of a run tell about how fast everything of it was, as the store reads it and the simulator fits it.

Raw times in seconds, without a judgement. Invariant: whoever reads fills these and knows of no model; whoever fits is
given these and knows of no table.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decode steps of a policy on one engine, one after the other."""

    policy: str
    steps: int
    tokens: int
    prompts: int
    seconds: float
    began: float = 0.0
    cpu: float = 0.0
    """Of the processor; 0: not told."""


@dataclass(frozen=True, slots=True)
class Commanded:
    """A trainer's gradient or optimizer step. Times since the epoch, on the database's clock."""

    lease_id: int
    kind: str
    policy: str
    created: float
    done: float
    seconds: float
    """That the trainer worked on it."""
    rows: int
    tokens: int
    handled: float = 0.0
    """When the driver decided on what came of it; 0: not read."""
    slow: float = 1.0
    """How many times as long it took as with a core for itself."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A settled group: when it was over, and when the driver had decided on that."""

    finished: float
    handled: float
    slow: float = 1.0
    """How many times as long that took as with a core for itself."""


@dataclass(frozen=True, slots=True)
class CommandDelay:
    """A command: when it was made, and how long until it was taken."""

    created: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Worked:
    """A stretch in which an engine decoded, or a trainer made gradients."""

    began: float
    ended: float
    cpu: float
    """Processor seconds that it took; 0: not told."""


@dataclass(frozen=True, slots=True)
class TurnLengths:
    role: str
    prompt: float
    reply: float
    deviation: float
    """Standard deviation of the replies' lengths."""


@dataclass(frozen=True, slots=True)
class CohortRollout:
    """A cohort's rollout: from its first episode to the end of its last."""

    began: float
    ended: float
    turns: int
    asked: float = 0.0
    """When its first groups were asked for; 0: not read."""
    decided: float = 0.0
    """When the driver had decided on its last group; 0: not read."""
    slow: float = 1.0
    """How many times as long it took as with a core for itself."""


@dataclass(frozen=True, slots=True)
class RunRows:
    """Everything that one run tells."""

    decoded: list[Decoded]
    commanded: list[Commanded]
    settled: list[Settled]
    lasted: dict[tuple[str, str], list[float]]
    """(kind, policy) -> seconds, of `load`, `bind`, `suspend`, `resume`."""
    parameters: dict[str, int]
    roles: list[TurnLengths]
    turns: tuple[float, float, float]
    """Of finished training episodes: mean, standard deviation, and the share of its square that lies between groups."""
    played: list[CohortRollout]
    open: list[tuple[float, float]]
    """When rollout workers were at a command: (from, to)."""
    generated: list[tuple[float, float]]
    """When its engines generated: (from, to), one after the other per engine."""
    picked_up: list[CommandDelay]
    """From a command to play groups until a worker took it."""
    hops: list[CommandDelay]
    """From a command to an engine until its node took it."""
    starts: list[float]
    """From a lease until its child was ready."""
    worked: list[Worked]
    """Stretches of all engines and trainers, in order of their ends."""
    cores: int
    """Of the one host that all its devices belong to; 0: several hosts, or not told."""
