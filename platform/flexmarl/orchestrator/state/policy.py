"""A policy's committed weights, its accumulator, and the trainer devices that hold its training state."""

from dataclasses import dataclass, field

from flexmarl.orchestrator.state.cohort import Pin, PolicyCohort


@dataclass(slots=True)
class PolicyPlacement:
    """Trainer devices or ticket of a policy's training state, and the measured times of moving it."""

    gang: list[int] = field(default_factory=list)
    """Leases of the trainers that hold it or are asked to, the leader first; empty while it is suspended or nowhere."""
    ticket: str = ""
    """Where it is suspended; empty while it is not. It stays until a trainer has taken the policy up."""
    lease_id: int = 0
    """Lease whose trainer suspended it last."""
    meeting: int = 0
    """How often a gang of several was formed for it."""
    since: float = 0.0
    """When it was given its gang."""
    worked: bool = False
    """A gradient was computed or a step taken since."""
    waiting_since: float | None = None
    """Since when it has work and no device."""
    idle_since: float | None = None
    """Since when it has devices and no work."""
    meant: list[int] = field(default_factory=list)
    """Leases of the trainers for which it was suspended, until it is bound or has nothing to do."""
    suspend_s: float = 0.0
    resume_s: float = 0.0
    token_s: float = 0.0
    """Measured, smoothed: to suspend it, to bring it back, and a device's time for one token; 0: not measured yet."""


@dataclass(slots=True)
class PolicyState:
    version: int | None = None
    digest: str = ""
    accumulator: str = ""
    """Epoch of the accumulator; empty while no trainer holds the policy and none suspended it."""
    placement: PolicyPlacement = field(default_factory=PolicyPlacement)
    next_micro_batch: int = 0
    carry: PolicyCohort | None = None
    """Between two cohorts: what the last one carried, in the accumulator and never applied."""

    @property
    def pin(self) -> Pin:
        """Return the committed weights. Only after version 0 exists."""
        assert self.version is not None
        return Pin(self.version, self.digest)
