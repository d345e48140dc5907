"""What the engines have been told, so that telling them goes on where it stopped and costs what has changed.

Invariants: to tell an engine twice what to hold of a policy changes nothing the second time, unless the engine
answered, its child changed or a command failed in between. So what is left out here would have led to no command: a
core that remembers nothing decides the same. It is no part of the state; a restored core begins with nothing.
"""

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.serving import lacks, required_versions, tell, withdraw_others
from flexmarl.orchestrator.state import LeaseState, Pin


class Told:
    """The engines in their order, and for each policy what they shall hold and how far they have been told."""

    def __init__(self) -> None:
        self._engines: list[LeaseState] | None = None
        self._places: dict[int, int] = {}
        self._pins: dict[str, list[Pin]] = {}
        self._next: dict[str, int] = {}

    def forget(self) -> None:
        """Something happened to engines that nobody can name: all of them are told anew."""
        self._engines = None

    def all(self, ctx: Context, lease_id: int = 0) -> None:
        """Tell each engine what it has not been told: of a lease that a fact speaks of, everything is looked at."""
        self._look(ctx)
        for name, pins in required_versions(ctx, ctx.state.policies).items():
            self._tell(ctx, name, pins, lease_id)

    def policy(self, ctx: Context, name: str) -> None:
        """Tell each engine what to hold of one policy."""
        self._look(ctx)
        for own, pins in required_versions(ctx, (name,)).items():
            self._tell(ctx, own, pins)

    def served(self, ctx: Context, lease_id: int, name: str) -> None:
        """Tell the next engine, since one holds something of a policy; it may be told of a further version itself."""
        if self._engines is None or name not in self._pins:
            self.policy(ctx, name)
        else:
            self._go_on(ctx, name, lease_id)

    def _look(self, ctx: Context) -> None:
        """Take in the engines anew. Facts about one engine or policy do not change which there are."""
        if self._engines is None:
            self._engines = ctx.state.of_use(DeviceUse.ENGINE)
            self._places = {lease.lease_id: place for place, lease in enumerate(self._engines)}
            self._pins.clear()
            self._next.clear()

    def _tell(self, ctx: Context, name: str, pins: list[Pin], lease_id: int = 0) -> None:
        before = self._pins.get(name)
        if before is None or [pin.version for pin in before] != [pin.version for pin in pins]:
            withdraw_others(ctx, name, pins)
            self._pins[name], self._next[name] = pins, 0
        self._go_on(ctx, name, lease_id)

    def _go_on(self, ctx: Context, name: str, lease_id: int) -> None:
        assert self._engines is not None
        place, pins, following = self._places.get(lease_id), self._pins[name], self._next[name]
        if place is not None and place < following:
            lease = self._engines[place]
            waits = lacks(lease, name, pins) is not None and not tell(ctx, (lease,), name, pins)
            following = place if waits else following
        self._next[name] = tell(ctx, self._engines, name, pins, following)
