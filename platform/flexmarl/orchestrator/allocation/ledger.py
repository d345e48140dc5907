"""Who is on which trainer device, while changes are decided one after the other."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from flexmarl.orchestrator.allocation.types import AllocationSnapshot


@dataclass(slots=True)
class AllocationLedger:
    """Policies on each trainer device while changes are decided one after the other."""

    seen: AllocationSnapshot
    residents: dict[int, list[str]]
    leaving: set[str]
    sizes: dict[str, int] = field(default_factory=dict)
    """Policy -> devices it has."""
    promised: set[int] = field(default_factory=set)
    """Devices on their way to somebody who waits."""
    meant: set[str] = field(default_factory=set)
    """Policies that wait for the devices for which they were suspended."""

    def comes(self, policy: str) -> bool:
        """Tell whether what a policy was suspended for has come true, or will when those who leave are gone."""
        wanted = self.seen.policies[policy].meant
        away = self.leaving | {policy}
        left = {d: [name for name in self.residents.get(d, ()) if name not in away] for d in wanted}
        return set(wanted) <= set(self.residents) and all(self._fits(len(wanted), left[d]) for d in wanted)

    def room(self, policy: str, gone: Iterable[str] = ()) -> list[int]:
        """List the devices that have a place for a policy, best first, as if some policies were gone."""
        policies, devices, away = self.seen.policies, self.seen.devices, set(gone)
        needs, found = policies[policy], []
        for place, (device, names) in enumerate(self.residents.items()):
            if device not in devices or (needs.fixed and device not in needs.homes):
                continue
            left = [name for name in names if name not in away]
            if self._fits(needs.least, left):
                working = [own.seconds for name in left if (own := policies[name]).has_work]
                found.append((sum(working), len(working), device != needs.last, len(left), place, device))
        return [device for *_, device in sorted(found)]

    def _fits(self, size: int, left: list[str]) -> bool:
        if size > 1:
            return not left
        alone = all(self.sizes[name] == 1 for name in left)
        return alone and (self.seen.places is None or len(left) < self.seen.places)

    def working(self, device: int) -> list[str]:
        """List the policies on a device that have work and stay."""
        names = self.residents[device]
        return [name for name in names if self.seen.policies[name].has_work and name not in self.leaving]

    def ends_s(self, policy: str) -> float:
        """Return how long it takes until a policy is done where it is, beside whom it shares a device with."""
        needs = self.seen.policies[policy]
        if len(needs.gang) > 1:
            return needs.takes_s(len(needs.gang))
        return sum(self.seen.policies[name].seconds for device in needs.gang for name in self.working(device))

    def fits(self, policy: str, device: int, size: int = 1) -> bool:
        """Tell whether a policy could have a device as it is, as one of so many."""
        return self._fits(max(size, self.seen.policies[policy].least), self.residents[device])

    def idle(self) -> list[str]:
        """List the policies that are kept warm no longer, those without work for longest first.

        Unless somebody chose a time, one that gets no more work before all others are done is not kept at all.
        """
        seen = self.seen
        found = [
            (s.idle_since, name)
            for name, s in seen.policies.items()
            if s.gang and s.still and name not in self.leaving and not s.has_work and s.idle_since is not None
            and ((not s.more and seen.keep_warm_s is None) or s.idle_since + seen.warm_s <= seen.now)
        ]  # fmt: skip
        return [name for _, name in sorted(found)]

    def bind(self, policy: str, gang: tuple[int, ...]) -> None:
        self.sizes[policy] = len(gang)
        for device in gang:
            self.residents[device].append(policy)


def opened(seen: AllocationSnapshot) -> AllocationLedger:
    ledger = AllocationLedger(seen, {device: [] for device in seen.devices}, set())
    for name, needs in seen.policies.items():
        ledger.sizes[name] = len(needs.gang)
        for device in needs.gang:
            ledger.residents.setdefault(device, []).append(name)
        if needs.leaving:
            ledger.leaving.add(name)
    for name, needs in seen.policies.items():
        if needs.has_work and needs.meant and (needs.leaving or not needs.gang) and ledger.comes(name):
            ledger.meant.add(name)
            ledger.promised.update(needs.meant)
    return ledger
