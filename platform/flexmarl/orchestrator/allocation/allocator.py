"""Which policy is trained on which trainer devices: decided from what each has to do. Pure.

Invariants: a policy gets a gang of devices, all or none, and only devices that have a place for it; a gang of several
has its devices for itself. Nothing is taken from a policy while something of it is on its way that cannot be repeated.
A policy that has nothing to do keeps its devices while nobody waits for them, and for as long as a swap takes then, so
that two policies never swap more than they work. Whoever waits is served in the order in which it began to, and after
`patience_s` even by one that has work left. Devices beyond a policy's least go to it only while nobody waits, and only
for more work than the swap costs.
"""

from collections.abc import Iterable
from math import inf

from flexmarl.orchestrator.allocation.ledger import AllocationLedger, opened
from flexmarl.orchestrator.allocation.scale_out import balanced, spread
from flexmarl.orchestrator.allocation.types import AllocationSnapshot, BindChange, Change, PolicyNeeds, Suspend


def on_demand(seen: AllocationSnapshot) -> list[Change]:
    """Bind who waits, make room for who still does, and then spread out what works."""
    ledger = opened(seen)
    changes: list[Change] = []
    waiting = _waiting(seen)
    for name in waiting:
        changes += _serve(ledger, name)
    if not waiting:
        return spread(ledger)
    bound = [change for change in changes if isinstance(change, BindChange)]
    return _widened(ledger, bound) if len(bound) == len(waiting) else changes


def spread_once(seen: AllocationSnapshot) -> list[Change]:
    """Bind who is nowhere, and move nobody: whoever has chosen devices first, then the largest gangs.

    In another order, policies that could share a device would take those that a gang cannot do without.
    """
    ledger = opened(seen)
    changes: list[Change] = []
    for name in sorted(_waiting(seen), key=lambda name: _choice(seen.policies[name])):
        needs, room = seen.policies[name], ledger.room(name)
        if len(room) < needs.least:
            continue
        chosen = len(needs.homes) == needs.least and set(needs.homes) <= set(room)
        gang = needs.homes if chosen else tuple(sorted(room[: needs.least]))
        ledger.bind(name, gang)
        changes.append(BindChange(name, gang, "static", f"{name} is trained there"))
    return changes


def _choice(needs: PolicyNeeds) -> tuple[bool, int]:
    return not needs.homes, -needs.least


def next_look(seen: AllocationSnapshot) -> float | None:
    """Return when time alone could change what is decided, None when it cannot."""
    waits = [s.waiting_since for s in seen.policies.values() if s.waiting_since is not None and not s.gang]
    if not waits:
        return None
    warm = [s.idle_since + seen.warm_s for s in seen.policies.values() if s.gang and s.idle_since is not None]
    due = [at for at in (*warm, min(waits) + seen.patience_s) if seen.now < at < inf]
    return min(due, default=None)


def _waiting(seen: AllocationSnapshot) -> list[str]:
    """List the policies that have work and no device, in the order in which they are served: of equals, those with
    most work first, since what is left at the end is then small and fits in anywhere."""
    names = [name for name, own in seen.policies.items() if own.has_work and not own.gang and _reachable(seen, own)]
    return sorted(names, key=lambda name: (_since(seen, name), -seen.policies[name].seconds))


def _reachable(seen: AllocationSnapshot, own: PolicyNeeds) -> bool:
    """Tell whether the devices that a policy is trained on may be given to it now."""
    return not own.fixed or (bool(own.homes) and set(own.homes) <= set(seen.devices))


def _since(seen: AllocationSnapshot, name: str) -> float:
    since = seen.policies[name].waiting_since
    return seen.now if since is None else since


def _serve(ledger: AllocationLedger, name: str) -> list[Change]:
    """Give a policy devices on which nobody works, or let others make room; it shares one where all are at work."""
    needs = ledger.seen.policies[name]
    if name in ledger.meant:
        there = all(ledger.fits(name, device, len(needs.meant)) for device in needs.meant)
        return [_bound(ledger, name, needs.meant)] if there else []
    room = [device for device in ledger.room(name) if device not in ledger.promised]
    quiet = [device for device in room if not ledger.working(device)]
    if len(quiet) >= needs.least:
        return [_bound(ledger, name, quiet[: needs.least])]
    coming = [d for d in ledger.room(name, ledger.leaving) if d not in ledger.promised and not ledger.working(d)]
    if len(coming) >= needs.least:
        ledger.promised.update(coming[: needs.least])
        return []
    made = _make_room(ledger, name, needs)
    if made or len(room) < needs.least:
        return made
    return [_bound(ledger, name, room[: needs.least])]


def _bound(ledger: AllocationLedger, name: str, gang: Iterable[int]) -> BindChange:
    seen, most = ledger.seen, ledger.seen.policies[name].most
    waited, chosen = seen.now - _since(seen, name), tuple(sorted(gang))
    ledger.bind(name, chosen)
    text = f"{name} has work, waited {waited:.1f} s and gets {len(chosen)} of up to {most} devices"
    return BindChange(name, chosen, "work", text)


def _widened(ledger: AllocationLedger, bound: list[BindChange]) -> list[Change]:
    """Share devices that hold nobody out among those that are bound now."""
    seen = ledger.seen
    empty = [device for device, names in ledger.residents.items() if not names and device not in ledger.promised]
    alone = {
        bind.policy: len(bind.gang)
        for bind in bound
        if bind.policy not in ledger.meant and all(ledger.residents[device] == [bind.policy] for device in bind.gang)
    }
    sizes = balanced(seen, alone, len(empty))
    changes: list[Change] = []
    for bind in bound:
        own, before, size = seen.policies[bind.policy], len(bind.gang), sizes.get(bind.policy, 0)
        if size > before and seen.pays(own.takes_s(before) - own.takes_s(size)):
            more, empty = empty[: size - before], empty[size - before :]
            ledger.residents.update({device: [bind.policy] for device in more})
            changes.append(_bound(ledger, bind.policy, [*bind.gang, *more]))
        else:
            changes.append(bind)
    return changes


def _make_room(ledger: AllocationLedger, name: str, needs: PolicyNeeds) -> list[Change]:
    """Suspend as many as it takes for a policy's gang: first those that have had nothing to do for longest."""
    seen = ledger.seen
    gone, out = set(ledger.leaving), []
    for victim in [*ledger.idle(), *_wide(ledger), *_overstayed(ledger, name)]:
        enough = [device for device in ledger.room(name, gone) if device not in ledger.promised]
        if len(enough) >= needs.least:
            break
        gone.add(victim)
        out.append(victim)
    enough = [device for device in ledger.room(name, gone) if device not in ledger.promised]
    if len(enough) < needs.least or not out:
        return []
    needed = set(enough[: needs.least])
    ledger.promised |= needed
    changes: list[Change] = []
    for victim in out:
        own = seen.policies[victim]
        if needed.intersection(own.gang):
            ledger.leaving.add(victim)
            cause, why = _left(seen, own)
            changes.append(Suspend(victim, cause, f"{victim} {why}, {name} waits for its devices"))
    return changes


def _left(seen: AllocationSnapshot, own: PolicyNeeds) -> tuple[str, str]:
    """Say why a policy makes room: as a cause, and in words."""
    if not own.has_work:
        return "drained", "has no work"
    if len(own.gang) > own.least:
        return "wide", f"has {len(own.gang)} devices and needs only {own.least}"
    return "patience", f"had them for {seen.now - own.bound_at:.1f} s"


def _wide(ledger: AllocationLedger) -> list[str]:
    """List the policies that would be done as early with fewer devices, and not soon."""
    seen = ledger.seen
    found = [
        (-s.takes_s(len(s.gang)), name)
        for name, s in seen.policies.items()
        if s.gang
        and max(s.least, s.widest(len(s.gang))) < len(s.gang)
        and s.still
        and s.worked
        and s.has_work
        and name not in ledger.leaving
    ]
    return [name for left, name in sorted(found) if seen.pays(-left)]


def _overstayed(ledger: AllocationLedger, waiter: str) -> list[str]:
    """List the policies with work left that have held devices for longest, once somebody waits for too long."""
    seen = ledger.seen
    if seen.now - _since(seen, waiter) < seen.patience_s:
        return []
    found = [
        (len(s.gang) <= s.least, s.bound_at, name)
        for name, s in seen.policies.items()
        if s.gang
        and s.still
        and s.worked
        and name not in ledger.leaving
        and s.has_work
        and s.bound_at + seen.patience_s <= seen.now
    ]
    return [name for *_, name in sorted(found)]
