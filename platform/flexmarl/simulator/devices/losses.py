"""What faults cost: since when which device did not work, when another stood in for it, and what was done again.

Invariants: a loss is open until the same lease, or else a lease granted later, works in its stead; one child ends one
loss at most. A trainer works when it has done something for a policy, an engine when it serves weights.
"""

from dataclasses import dataclass, field

from flexmarl.contracts.events import DeviceUse


@dataclass(slots=True)
class DeviceLoss:
    at: float
    cause: str
    """`child`, `node` or `preempted`."""
    use: DeviceUse
    device_id: str
    lease_id: int
    ended: bool = False
    """Its lease has ended: only another one can stand in."""
    back: float | None = None


@dataclass(slots=True)
class Losses:
    found: list[DeviceLoss] = field(default_factory=list)
    replayed_tokens: float = 0.0
    """Reply tokens of episodes that broke off with their rollout worker, played again from their beginning."""
    redone_tokens: int = 0
    """Tokens whose gradient was computed a second time."""
    redone_s: float = 0.0
    """Time of trainers for that, a gang counted once."""
    _open: list[DeviceLoss] = field(default_factory=list)
    _computed: set[tuple[str, int]] = field(default_factory=set)

    def note(self, loss: DeviceLoss) -> None:
        """Begin a loss, unless its lease has lost its child already."""
        if not any(one.lease_id == loss.lease_id for one in self._open):
            self.found.append(loss)
            self._open.append(loss)

    def lease_ended(self, lease_id: int) -> None:
        """Let other leases stand in for this one."""
        for loss in self._open:
            loss.ended = loss.ended or loss.lease_id == lease_id

    def works(self, lease_id: int, use: DeviceUse, now: float) -> None:
        """Note that a child does what it is there for; call it for each life's first deed."""
        own = [loss for loss in self._open if loss.lease_id == lease_id]
        others = [loss for loss in self._open if loss.use is use and loss.ended and loss.lease_id < lease_id]
        for loss in [*own, *others][:1]:
            loss.back = now
            self._open.remove(loss)

    def computed(self, micro_batch: tuple[str, int], tokens: int, seconds: float) -> None:
        """Note that the gradient of a policy's micro-batch was computed."""
        if micro_batch in self._computed:
            self.redone_tokens += tokens
            self.redone_s += seconds
        self._computed.add(micro_batch)

    def lost_s(self, now: float) -> float:
        """Return the device time without a device that works, those that are missing now included."""
        return sum(((now if loss.back is None else loss.back) - loss.at for loss in self.found if loss.at < now), 0.0)

    def recovery_s(self) -> float:
        """Return the mean time from a loss to work again; 0 while nothing came back."""
        times = [loss.back - loss.at for loss in self.found if loss.back is not None]
        return sum(times) / len(times) if times else 0.0
