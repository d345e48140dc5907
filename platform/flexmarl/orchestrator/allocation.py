"""Which policy is trained on which trainer devices: decided from what each has to do. Pure.

Invariants: a policy gets a gang of devices, all or none, and only devices that have a place for it; a gang of several
has its devices for itself. Nothing is taken from a policy while something of it is on its way that cannot be repeated.
A policy that has nothing to do keeps its devices while nobody waits for them, and for as long as a swap takes then, so
that two policies never swap more than they work. Whoever waits is served in the order in which it began to, and after
`patience_s` even by one that has work left. Devices beyond a policy's least go to it only while nobody waits, and only
for more work than the swap costs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

WORTH = 2.0
"""A move must save this many times what its swap takes: how long work takes is an estimate."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What allocation knows of a policy."""

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
    waiting_since: float | None = None
    idle_since: float | None = None
    bound_at: float = 0.0
    worked: bool = True
    """Something of it was done since it was bound: whoever is taken off before that would never get anywhere."""
    last: int = 0
    """Device it was on last: what it left there may be of use."""
    homes: tuple[int, ...] = ()
    """Devices that somebody chose for it."""

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    now: float
    policies: Mapping[str, Standing]
    """In the order in which equals are served."""
    devices: tuple[int, ...]
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


@dataclass(frozen=True, slots=True)
class Bind:
    policy: str
    gang: tuple[int, ...]
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class Suspend:
    policy: str
    cause: str
    reason: str


Change = Bind | Suspend


@dataclass(slots=True)
class _Book:
    """Who is where, while changes are decided one after the other."""

    seen: Snapshot
    residents: dict[int, list[str]]
    leaving: set[str]
    sizes: dict[str, int] = field(default_factory=dict)
    """Policy -> devices it has."""
    promised: set[int] = field(default_factory=set)
    """Devices on their way to somebody who waits."""

    def room(self, policy: str, gone: Iterable[str] = ()) -> list[int]:
        """List the devices that have a place for a policy, best first, as if some policies were gone."""
        standing, away = self.seen.policies[policy], set(gone)
        found = []
        for place, (device, names) in enumerate(self.residents.items()):
            left = [name for name in names if name not in away]
            if self._fits(standing, left):
                working = [self.seen.policies[name].seconds for name in left if self.seen.policies[name].has_work]
                found.append((sum(working), len(working), device != standing.last, len(left), place, device))
        return [device for *_, device in sorted(found)]

    def _fits(self, standing: Standing, left: list[str]) -> bool:
        if standing.least > 1:
            return not left
        alone = all(self.sizes[name] == 1 for name in left)
        return alone and (self.seen.places is None or len(left) < self.seen.places)

    def working(self, device: int) -> list[str]:
        """List the policies on a device that have work and stay."""
        names = self.residents[device]
        return [name for name in names if self.seen.policies[name].has_work and name not in self.leaving]

    def fits(self, policy: str, device: int) -> bool:
        """Tell whether a policy could have a device as it is."""
        return self._fits(self.seen.policies[policy], self.residents[device])

    def bind(self, policy: str, gang: tuple[int, ...]) -> None:
        self.sizes[policy] = len(gang)
        for device in gang:
            self.residents[device].append(policy)


def _open(seen: Snapshot) -> _Book:
    book = _Book(seen, {device: [] for device in seen.devices}, set())
    for name, standing in seen.policies.items():
        book.sizes[name] = len(standing.gang)
        for device in standing.gang:
            book.residents.setdefault(device, []).append(name)
        if standing.leaving:
            book.leaving.add(name)
    return book


def on_demand(seen: Snapshot) -> list[Change]:
    """Bind who waits, make room for who still does, and then spread out what works."""
    book = _open(seen)
    changes: list[Change] = []
    waiting = _waiting(seen)
    for name in waiting:
        changes += _serve(book, name)
    if not waiting:
        return _spread(book)
    bound = [change for change in changes if isinstance(change, Bind)]
    return _widened(book, bound) if len(bound) == len(waiting) else changes


def spread_once(seen: Snapshot) -> list[Change]:
    """Bind who is nowhere, and move nobody: whoever has chosen devices first, then the largest gangs.

    In another order, policies that could share a device would take those that a gang cannot do without.
    """
    book = _open(seen)
    changes: list[Change] = []
    for name in sorted(_waiting(seen), key=lambda name: _choice(seen.policies[name])):
        standing, room = seen.policies[name], book.room(name)
        if len(room) < standing.least:
            continue
        chosen = len(standing.homes) == standing.least and set(standing.homes) <= set(room)
        gang = standing.homes if chosen else tuple(sorted(room[: standing.least]))
        book.bind(name, gang)
        changes.append(Bind(name, gang, "static", f"{name} is trained there from now on"))
    return changes


def _choice(standing: Standing) -> tuple[bool, int]:
    return not standing.homes, -standing.least


def next_look(seen: Snapshot) -> float | None:
    """Return when time alone could change what is decided, None when it cannot."""
    waits = [s.waiting_since for s in seen.policies.values() if s.waiting_since is not None and not s.gang]
    if not waits:
        return None
    warm = [s.idle_since + seen.warm_s for s in seen.policies.values() if s.gang and s.idle_since is not None]
    due = [at for at in (*warm, min(waits) + seen.patience_s) if seen.now < at < inf]
    return min(due, default=None)


def _waiting(seen: Snapshot) -> list[str]:
    """List the policies that have work and no device, in the order in which they are served: of equals, those with
    most work first, since what is left at the end is then small and fits in anywhere."""
    names = [name for name, standing in seen.policies.items() if standing.has_work and not standing.gang]
    return sorted(names, key=lambda name: (_since(seen, name), -seen.policies[name].seconds))


def _since(seen: Snapshot, name: str) -> float:
    since = seen.policies[name].waiting_since
    return seen.now if since is None else since


def _serve(book: _Book, name: str) -> list[Change]:
    """Give a policy devices on which nobody works, or let others make room; it shares one where all are at work."""
    standing = book.seen.policies[name]
    room = [device for device in book.room(name) if device not in book.promised]
    quiet = [device for device in room if not book.working(device)]
    if len(quiet) >= standing.least:
        return [_bound(book, name, quiet[: standing.least])]
    coming = [d for d in book.room(name, book.leaving) if d not in book.promised and not book.working(d)]
    if len(coming) >= standing.least:
        book.promised.update(coming[: standing.least])
        return []
    made = _make_room(book, name, standing)
    if made or len(room) < standing.least:
        return made
    return [_bound(book, name, room[: standing.least])]


def _bound(book: _Book, name: str, gang: list[int]) -> Bind:
    seen, most = book.seen, book.seen.policies[name].most
    waited, chosen = seen.now - _since(seen, name), tuple(sorted(gang))
    book.bind(name, chosen)
    text = f"{name} has work, waited {waited:.1f} s and gets {len(chosen)} of up to {most} devices"
    return Bind(name, chosen, "work", text)


def _widened(book: _Book, bound: list[Bind]) -> list[Change]:
    """Share devices that hold nobody out among those that are bound now, one by one to whom it helps most."""
    seen = book.seen
    empty = [device for device, names in book.residents.items() if not names]
    gangs = {bind.policy: list(bind.gang) for bind in bound}
    while empty:
        helped = [
            (-own.takes_s(len(gang)), name, size)
            for name, gang in gangs.items()
            if (own := seen.policies[name]).seconds < inf
            and all(book.residents[device] == [name] for device in gang)
            and (size := own.wider(len(gang), len(gang) + len(empty))) is not None
        ]
        if not helped:
            break
        _, name, size = min(helped)
        while len(gangs[name]) < size:
            gangs[name].append(empty.pop(0))
            book.residents[gangs[name][-1]].append(name)
    changes: list[Change] = []
    for bind in bound:
        own, gang = seen.policies[bind.policy], gangs[bind.policy]
        pays = len(gang) > len(bind.gang) and _pays(seen, own.takes_s(len(bind.gang)) - own.takes_s(len(gang)))
        changes.append(_bound(book, bind.policy, gang) if pays else bind)
    return changes


def _make_room(book: _Book, name: str, standing: Standing) -> list[Change]:
    """Suspend as many as it takes for a policy's gang: first those that have had nothing to do for longest."""
    seen = book.seen
    gone, out = set(book.leaving), []
    for victim in [*_idle(book), *_overstayed(book, name)]:
        enough = [device for device in book.room(name, gone) if device not in book.promised]
        if len(enough) >= standing.least:
            break
        gone.add(victim)
        out.append(victim)
    enough = [device for device in book.room(name, gone) if device not in book.promised]
    if len(enough) < standing.least or not out:
        return []
    needed = set(enough[: standing.least])
    book.promised |= needed
    changes: list[Change] = []
    for victim in out:
        own = seen.policies[victim]
        if needed.intersection(own.gang):
            book.leaving.add(victim)
            cause = "drained" if not own.has_work else "patience"
            why = "has nothing to do" if not own.has_work else f"had them for {seen.now - own.bound_at:.1f} s"
            changes.append(Suspend(victim, cause, f"{victim} {why}, {name} waits for its devices"))
    return changes


def _idle(book: _Book) -> list[str]:
    """List the policies that are kept warm no longer, those without work for longest first."""
    seen = book.seen
    found = [
        (s.idle_since, name)
        for name, s in seen.policies.items()
        if s.gang and s.still and name not in book.leaving and not s.has_work and s.idle_since is not None
        and (not s.more or s.idle_since + seen.warm_s <= seen.now)
    ]  # fmt: skip
    return [name for _, name in sorted(found)]


def _overstayed(book: _Book, waiter: str) -> list[str]:
    """List the policies with work left that have held devices for longest, once somebody waits for too long."""
    seen = book.seen
    if seen.now - _since(seen, waiter) < seen.patience_s:
        return []
    found = [
        (len(s.gang) <= s.least, s.bound_at, name)
        for name, s in seen.policies.items()
        if s.gang
        and s.still
        and s.worked
        and name not in book.leaving
        and s.has_work
        and s.bound_at + seen.patience_s <= seen.now
    ]
    return [name for *_, name in sorted(found)]


def _spread(book: _Book) -> list[Change]:
    """Let one policy with work leave a device that it shares, or take more devices, where others have nothing to do."""
    seen = book.seen
    if book.leaving or any(s.gang and not s.still and not s.has_work for s in seen.policies.values()):
        return []
    leaves = set(_idle(book))
    quiet = [d for d, names in book.residents.items() if not book.working(d) and leaves.issuperset(names)]
    if not quiet:
        return []
    return _part(book, quiet) or _grow(book, quiet, leaves)


def _part(book: _Book, quiet: list[int]) -> list[Change]:
    """Move the policy whose leaving shortens the work of its device most to a quiet one."""
    seen, best, chosen = book.seen, 0.0, ""
    for device in book.residents:
        load = {name: seen.policies[name].seconds for name in book.working(device)}
        for name, own in load.items():
            saved = sum(load.values()) - max(own, sum(load.values()) - own)
            if len(load) > 1 and seen.policies[name].still and seen.policies[name].least == 1 and saved > best:
                best, chosen = saved, name
    there = [name for name in book.residents[quiet[0]] if not book.fits(chosen, quiet[0])] if chosen else []
    if not chosen or not _pays(seen, best, 1 + len(there)):
        return []
    text = f"{chosen} shares its device with others that work, and another has nothing to do"
    return [Suspend(mover, "shared", text) for mover in there or [chosen]]


def _grow(book: _Book, quiet: list[int], leaves: set[str]) -> list[Change]:
    """Let the policy with most work per device take quiet ones; who is warm there, or beside it, makes room first."""
    seen = book.seen
    most = [
        (-s.takes_s(len(s.gang)), name)
        for name, s in seen.policies.items()
        if s.has_work and s.gang and s.still and len(s.gang) < s.most and s.seconds < inf
    ]
    for _, name in sorted(most):
        own = seen.policies[name]
        if not set(book.residents[own.gang[0]]) - {name} <= leaves:
            continue
        size = own.widest(len(own.gang) + len(quiet))
        taken = {*own.gang, *quiet[: size - len(own.gang)]}
        movers = [other for other in seen.policies if other != name and taken.intersection(seen.policies[other].gang)]
        if size <= len(own.gang) or not _pays(seen, own.takes_s(len(own.gang)) - own.takes_s(size), 1 + len(movers)):
            continue
        text = f"{name} has more work than a swap costs, and could have {size} devices instead of {len(own.gang)}"
        return [Suspend(mover, "grow", text) for mover in [*movers, name]]
    return []


def _pays(seen: Snapshot, saved_s: float, swaps: int = 1) -> bool:
    return saved_s > WORTH * seen.swap_s * swaps
