"""A model of the driver: facts reach the real core one after the other, each after what the platform itself takes.

Invariants: the core alone decides, and the clock halts behind each of its decisions; a deadline that it named is kept
unless it names another first; nothing is told to a run that has ended.
"""

from collections import deque
from collections.abc import Callable

from flexmarl.contracts import events as e
from flexmarl.contracts.status import TERMINAL
from flexmarl.orchestrator import Decision, Orchestrator
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.scenarios.scenario import Delays


class SimulatedDriver:
    def __init__(
        self, clock: Clock, host: Clock, delays: Delays, core: Orchestrator, carry_out: Callable[[Decision], None]
    ) -> None:
        self.core = core
        self.handled = 0
        """Facts that the core decided on."""
        self.ended = ""
        """Why the run is over; empty while it goes on."""
        self.heard: Callable[[float, e.Event, Decision], None] | None = None
        """Told of every fact with what was decided on it."""
        self._clock, self._host, self._delays, self._carry_out = clock, host, delays, carry_out
        self._facts: deque[e.Event] = deque()
        self._deciding = False
        self._watch = 0

    def tell(self, fact: e.Event) -> None:
        """Let a fact be read by the driver."""
        self._host.after(self._delays.report, self._arrived, fact)

    def _arrived(self, fact: e.Event) -> None:
        self._facts.append(fact)
        self._decide()

    def _decide(self) -> None:
        """Hand the core its next fact, unless it is at work on one."""
        if not self._deciding and self._facts:
            self._deciding = True
            self._host.after(self._delays.decide, self._decided, self._facts.popleft())

    def _decided(self, fact: e.Event) -> None:
        self._deciding = False
        if self.ended:
            return
        decision = self.core.handle(fact, self._clock.now)
        self.handled += 1
        if self.heard is not None:
            self.heard(self._clock.now, fact, decision)
        self._carry_out(decision)
        if decision.status in TERMINAL:
            self.ended = f"{decision.status}: {decision.reason_text}"
        self._clock.halt()
        self._watch += 1
        if decision.deadline is not None:
            self._clock.at(decision.deadline, self._due, self._watch)
        self._decide()

    def _due(self, watch: int) -> None:
        if watch == self._watch:
            self._arrived(e.TimerFired())
