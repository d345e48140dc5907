"""What was requested of the engines, so that requests go on where they stopped and cost what has changed.

Invariants: to tell an engine twice what to hold of a policy changes nothing the second time, unless the engine
answered, its child changed or its load failed in between. So what is left out here would have led to no command: a
core that remembers nothing decides the same. It is no part of the state; a restored core begins with nothing.
"""

from collections.abc import Collection

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.serving.weight_sync import lacks, request_loads, required_versions, withdraw_others
from flexmarl.orchestrator.state.cohort import Pin
from flexmarl.orchestrator.state.fleet import LeaseState


class RequestedVersions:
    """Engines in their order and, for each policy, the versions requested of them and how far it was sent."""

    def __init__(self) -> None:
        self._engines: list[LeaseState] | None = None
        self._places: dict[int, int] = {}
        self._pins: dict[str, list[Pin]] = {}
        self._next: dict[str, int] = {}
        self._waiting: dict[str, set[int]] = {}
        """Places before the next one whose turn comes first: they were told once and lack something anew."""

    def forget(self) -> None:
        """Something happened to engines that nobody can name: all of them are told anew."""
        self._engines = None

    def all(self, ctx: Context, lease_id: int = 0) -> None:
        """Tell each engine what it has not been told, and again what it may have missed.

        That is everything for the lease that a fact speaks of, and for others what failed before.
        """
        self._look(ctx)
        missed: dict[str, list[int]] = {}
        for key in ctx.state.failures:
            family, _, subject = key.partition(":")
            if family == "load":
                failed, _, name = subject.partition(":")
                missed.setdefault(name, []).append(int(failed))
        for name, pins in required_versions(ctx, ctx.state.policies).items():
            self._request(ctx, name, pins, {lease_id, *missed.get(name, ())})

    def policy(self, ctx: Context, name: str) -> None:
        """Tell each engine what to hold of one policy."""
        self._look(ctx)
        for own, pins in required_versions(ctx, (name,)).items():
            self._request(ctx, own, pins)

    def served(self, ctx: Context, lease_id: int, name: str) -> None:
        """Tell the next engine, since one holds something of a policy; it may be told of a further version itself."""
        if self._engines is None or name not in self._pins:
            self.policy(ctx, name)
        else:
            self._go_on(ctx, name, (lease_id,))

    def _look(self, ctx: Context) -> None:
        """Take in the engines anew. Facts about one engine or policy do not change which there are."""
        if self._engines is None:
            self._engines = ctx.state.fleet.of_use(DeviceUse.ENGINE)
            self._places = {lease.lease_id: place for place, lease in enumerate(self._engines)}
            self._pins.clear()
            self._next.clear()
            self._waiting.clear()

    def _request(self, ctx: Context, name: str, pins: list[Pin], leases: Collection[int] = ()) -> None:
        before = self._pins.get(name)
        if before is None or [pin.version for pin in before] != [pin.version for pin in pins]:
            withdraw_others(ctx, name, pins)
            self._pins[name], self._next[name] = pins, 0
            self._waiting.pop(name, None)
        self._go_on(ctx, name, leases)

    def _go_on(self, ctx: Context, name: str, leases: Collection[int]) -> None:
        """Tell the next engines of a policy; before them, of those that have been told, the ones named here."""
        assert self._engines is not None
        pins, following = self._pins[name], self._next[name]
        again = {self._places[own] for own in leases if own in self._places}
        waiting = []
        for place in sorted(again | self._waiting.pop(name, set())):
            lease = self._engines[place]
            if place < following and lacks(lease, name, pins) and not request_loads(ctx, (lease,), name, pins):
                waiting.append(place)
        if waiting:
            self._waiting[name] = set(waiting)
            return
        if following < len(self._engines):
            following = request_loads(ctx, self._engines, name, pins, following)
        self._next[name] = following
