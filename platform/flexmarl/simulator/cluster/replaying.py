"""The recorded log of a run, fed to the core on the virtual clock: the same facts at the same moments.

Invariant: nothing is added. Deadlines fire where the log says so, since a driver hears of them when it looks.
"""

from collections.abc import Iterable

from flexmarl.contracts.events import Event
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.orchestrator import Decision, Orchestrator
from flexmarl.simulator.devices.clock import Clock

Handled = list[tuple[float, Event, Decision]]


def replay(spec: ExperimentSpec, log: Iterable[tuple[float, Event]]) -> Handled:
    """Return each fact of a log, in its order, with what the core decides upon it."""
    clock, core, handled = Clock(), Orchestrator(spec), Handled()

    def tell(at: float, event: Event) -> None:
        handled.append((at, event, core.handle(event, at)))

    for at, event in log:
        clock.at(at, tell, at, event)
    while clock.step():
        pass
    return handled
