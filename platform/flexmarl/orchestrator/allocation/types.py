"""What allocation is decided from, and what it decides. Values only."""

from collections.abc import Mapping
from math import inf

import msgspec

WORTH = 2.0
"""A move must save this many times what its swap takes: how long work takes is an estimate."""


class PolicyNeeds(msgspec.Struct, frozen=True, gc=False):
    """Facts of a policy that its allocation depends on."""

    has_work: bool
    """There is something to do for it that needs its devices."""
    seconds: float
    """What that takes on one device, as far as is known; infinite before anything was measured."""
    gang: tuple[int, ...]
    """Devices it holds or is being bound to; empty while it is suspended or nowhere."""
    still: bool
    """It may be suspended: nothing of it is on its way but gradients, which are computed again."""
    leaving: bool = False
    """It is being suspended; its devices are not free yet."""
    least: int = 1
    most: int = 1
    rows: int = 0
    """Rows of a micro-batch, which the ranks of a gang share out whole; 0: not known."""
    more: bool = True
    """More work may come for it before all others are done with theirs."""
    meant: tuple[int, ...] = ()
    """Devices for which it was suspended; empty where it was not for its own sake."""
    waiting_since: float | None = None
    idle_since: float | None = None
    bound_at: float = 0.0
    worked: bool = True
    """Something of it was done since it was bound: whoever is taken off before that would never get anywhere."""
    last: int = 0
    """Device it was on last: what it left there may be of use."""
    homes: tuple[int, ...] = ()
    """Devices that somebody chose for it."""
    fixed: bool = False
    """It is trained on its homes alone: nowhere while they are not there."""

    def takes_s(self, devices: int) -> float:
        """Return what its work takes on so many devices: as long as on the one with most rows."""
        return self.seconds * (-(-self.rows // devices) / self.rows if self.rows else 1 / devices)

    def wider(self, devices: int, most: int) -> int | None:
        """Return the least number of devices, of at most so many, on which its work takes less than on these."""
        sizes = range(devices + 1, min(most, self.most) + 1)
        return next((size for size in sizes if self.takes_s(size) < self.takes_s(devices)), None)

    def widest(self, most: int) -> int:
        """Return the least number of devices on which its work takes as little as on all of at most so many."""
        most = min(most, self.most)
        return next(size for size in range(1, most + 1) if self.takes_s(size) <= self.takes_s(most))


class AllocationSnapshot(msgspec.Struct, frozen=True, gc=False):
    now: float
    policies: Mapping[str, PolicyNeeds]
    """In the order in which equals are served."""
    devices: tuple[int, ...]
    """That may be given to policies now."""
    places: int | None
    """Policies that a device holds at once, None: all of them."""
    swap_s: float = 0.0
    """How long it takes to suspend a policy and to bring another back, as far as it was measured."""
    keep_warm_s: float | None = None
    patience_s: float = inf

    @property
    def warm_s(self) -> float:
        """How long a policy without work keeps devices that another waits for."""
        return self.swap_s if self.keep_warm_s is None else self.keep_warm_s

    def pays(self, saved_s: float, swaps: int = 1) -> bool:
        """Tell whether what is saved is worth so many swaps."""
        return saved_s > WORTH * self.swap_s * swaps


class BindChange(msgspec.Struct, frozen=True, gc=False):
    policy: str
    gang: tuple[int, ...]
    cause: str
    reason: str


class Suspend(msgspec.Struct, frozen=True, gc=False):
    policy: str
    cause: str
    reason: str
    meant: tuple[int, ...] = ()
    """Devices it is to have instead; empty where it makes room for others."""


Change = BindChange | Suspend
