"""Where policies that have work could be done with it earlier, while nobody waits for devices.

Invariants: a move saves more than the swaps that it takes; whoever is suspended for its own sake is told which devices
it will have, and those are kept for it until all who leave them are gone; nobody is moved while somebody leaves.
"""

from math import inf

from flexmarl.orchestrator.allocation.ledger import AllocationLedger
from flexmarl.orchestrator.allocation.types import AllocationSnapshot, Change, Suspend


def spread(ledger: AllocationLedger) -> list[Change]:
    """Let policies with work leave devices that they share, or take more or fewer of them, where that pays."""
    seen = ledger.seen
    if ledger.leaving or any(s.gang and not s.still and not s.has_work for s in seen.policies.values()):
        return []
    leaves = set(ledger.idle())
    usable = [d for d in seen.devices if leaves.union(ledger.working(d)).issuperset(ledger.residents[d])]
    movable = [
        name
        for name, s in seen.policies.items()
        if s.has_work and s.gang and s.still and not s.fixed and set(s.gang).issubset(usable)
    ]
    kept = {d for name, s in seen.policies.items() if s.has_work and name not in movable for d in s.gang}
    usable = [device for device in usable if device not in kept]
    least = {name: seen.policies[name].least for name in movable}
    if movable and sum(least.values()) <= len(usable):
        return _replanned(ledger, balanced(seen, least, len(usable) - sum(least.values())), usable, leaves)
    quiet = [device for device in usable if not ledger.working(device)]
    return (_part(ledger, quiet) or _grow(ledger, quiet, leaves)) if quiet else []


def balanced(seen: AllocationSnapshot, sizes: dict[str, int], free: int) -> dict[str, int]:
    """Return how many devices policies have when free ones are shared out, each time to whom it helps most."""
    sizes = dict(sizes)
    while free:
        helped = [
            (-own.takes_s(size), name, wider)
            for name, size in sizes.items()
            if (own := seen.policies[name]).seconds < inf and (wider := own.wider(size, size + free)) is not None
        ]
        if not helped:
            break
        _, name, size = min(helped)
        free -= size - sizes[name]
        sizes[name] = size
    return sizes


def _replanned(ledger: AllocationLedger, sizes: dict[str, int], usable: list[int], leaves: set[str]) -> list[Change]:
    """Move whoever has another number of devices than it would have if all were shared out anew, if that pays."""
    seen = ledger.seen
    now_s = max(ledger.ends_s(name) for name in sizes)
    then_s = max(seen.policies[name].takes_s(size) for name, size in sizes.items())
    if not seen.pays(now_s - then_s) or any(_soon_done(ledger, name) for name in seen.policies):
        return []
    gangs = _placed(ledger, sizes, usable)
    movers = [name for name, gang in gangs.items() if set(gang) != set(seen.policies[name].gang)]
    wanted = {device: len(gangs[name]) for name in movers for device in gangs[name]}
    out: list[Change] = []
    for other in sorted(leaves):
        if any(device in wanted and (wanted[device] > 1 or seen.places) for device in seen.policies[other].gang):
            out.append(Suspend(other, "drained", f"{other} has no work, others would finish earlier there"))
    for name in movers:
        before, size = len(seen.policies[name].gang), len(gangs[name])
        cause = "grow" if size > before else "wide" if size < before else "shared"
        text = (
            f"{name} gets {size} devices instead of {before}: all would finish in {then_s:.1f} s instead of {now_s:.1f}"
        )
        out.append(Suspend(name, cause, text, gangs[name]))
    return out


def _soon_done(ledger: AllocationLedger, name: str) -> bool:
    """Tell whether a policy leaves its devices in less time than a swap is worth: one move then serves for two."""
    own = ledger.seen.policies[name]
    return own.has_work and bool(own.gang) and not own.more and not ledger.seen.pays(ledger.ends_s(name))


def _placed(ledger: AllocationLedger, sizes: dict[str, int], usable: list[int]) -> dict[str, tuple[int, ...]]:
    """Choose devices: whoever has as many as it is to have keeps them, the others keep what they can."""
    seen, left = ledger.seen, sorted(usable, key=lambda device: len(ledger.working(device)))
    gangs = {}
    for name in sorted(sizes, key=lambda n: (sizes[n] != len(seen.policies[n].gang), -seen.policies[n].seconds)):
        own = [device for device in seen.policies[name].gang if device in left]
        gang = [*own, *(device for device in left if device not in own)][: sizes[name]]
        left = [device for device in left if device not in gang]
        gangs[name] = tuple(sorted(gang))
    return gangs


def _part(ledger: AllocationLedger, quiet: list[int]) -> list[Change]:
    """Move the policy whose leaving shortens the work of its device most to a quiet one."""
    seen, best, chosen = ledger.seen, 0.0, ""
    for device in ledger.residents:
        load = {name: seen.policies[name].seconds for name in ledger.working(device)}
        for name, own in load.items():
            saved = sum(load.values()) - max(own, sum(load.values()) - own)
            moves = seen.policies[name].still and not seen.policies[name].fixed and seen.policies[name].least == 1
            if len(load) > 1 and moves and saved > best:
                best, chosen = saved, name
    there = [name for name in ledger.residents[quiet[0]] if not ledger.fits(chosen, quiet[0])] if chosen else []
    if not chosen or not seen.pays(best, 1 + len(there)):
        return []
    text = f"{chosen} shares its device with others that work, and another device is idle"
    return [Suspend(mover, "shared", text) for mover in there or [chosen]]


def _grow(ledger: AllocationLedger, quiet: list[int], leaves: set[str]) -> list[Change]:
    """Let the policy with most work per device take quiet ones; who is warm there, or beside it, makes room first."""
    seen = ledger.seen
    most = [
        (-s.takes_s(len(s.gang)), name)
        for name, s in seen.policies.items()
        if s.has_work and s.gang and s.still and not s.fixed and len(s.gang) < s.most and s.seconds < inf
    ]
    for _, name in sorted(most):
        own = seen.policies[name]
        if not set(ledger.residents[own.gang[0]]) - {name} <= leaves:
            continue
        size = own.widest(len(own.gang) + len(quiet))
        taken = {*own.gang, *quiet[: size - len(own.gang)]}
        movers = [other for other in seen.policies if other != name and taken.intersection(seen.policies[other].gang)]
        if size <= len(own.gang) or not seen.pays(own.takes_s(len(own.gang)) - own.takes_s(size), 1 + len(movers)):
            continue
        text = f"{name} has more work than a swap costs, and could have {size} devices instead of {len(own.gang)}"
        return [Suspend(mover, "grow", text) for mover in [*movers, name]]
    return []
