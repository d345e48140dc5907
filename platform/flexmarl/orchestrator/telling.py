"""What every engine has been told, so that telling them again costs what has changed and not engines times policies.

Invariants: to tell an engine twice what to hold of a policy changes nothing the second time, unless the engine
answered, its child changed or a command failed in between. So what is left out here would have led to no command: a
core that remembers nothing decides the same. It is no part of the state; a restored core begins with nothing.
"""

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.serving import load, required_versions


class Told:
    """Policy -> versions that every engine of the run holds, or has been asked to hold."""

    def __init__(self) -> None:
        self._versions: dict[str, tuple[int, ...]] = {}

    def forget(self) -> None:
        """Something happened to engines that nobody can name: all of them are told anew."""
        self._versions.clear()

    def policy(self, ctx: Context, name: str) -> None:
        """Tell each engine what to hold of one policy."""
        for own, pins in required_versions(ctx, (name,)).items():
            for lease in ctx.state.of_use(DeviceUse.ENGINE):
                if lease.incarnation:
                    load(ctx, lease, own, pins)
            self._versions[own] = tuple(pin.version for pin in pins)

    def all(self, ctx: Context, lease_id: int) -> None:
        """Tell each engine what it has not been told: the one that a fact speaks of everything, the others what is new.

        In the order in which all of them would be told all of it.
        """
        wanted = required_versions(ctx, ctx.state.policies)
        versions = {name: tuple(pin.version for pin in pins) for name, pins in wanted.items()}
        new = {name: wanted[name] for name, own in versions.items() if self._versions.get(name) != own}
        self._versions = versions
        named = ctx.state.leases.get(lease_id)
        if not new and (named is None or named.use is not DeviceUse.ENGINE):
            return
        for lease in ctx.state.of_use(DeviceUse.ENGINE):
            if lease.incarnation:
                for name, pins in (wanted if lease is named else new).items():
                    load(ctx, lease, name, pins)
