"""The engines of a virtual cluster, and which of them may answer a turn.

Invariants: what is remembered of who holds what is forgotten whenever an engine comes, goes or holds other weights;
loads are the engines' own, so that nobody counts what is sent twice.
"""

from collections.abc import Callable, ItemsView, ValuesView
from dataclasses import replace
from typing import Any, NamedTuple

from flexmarl.algorithms.routing import EngineLoad, Router, RouteRequest
from flexmarl.algorithms.routing.base import emptiest
from flexmarl.algorithms.routing.least_loaded import LeastLoaded
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.devices.expected_lengths import ExpectedLengths
from flexmarl.simulator.devices.turns import SimulatedTurn


class Able(NamedTuple):
    """Engines that hold what a turn asks for."""

    engines: dict[str, SimulatedEngine]
    loads: list[EngineLoad]
    former: frozenset[str]
    """Those that have newer weights as well."""


class SimulatedFleet:
    def __init__(self, router: Router[Any], expected_lengths: ExpectedLengths | None = None) -> None:
        """`expected_lengths`: of routers that go by the lengths of replies."""
        self.asked: dict[str, int] = {}
        """Policy -> turns that an engine has."""
        self.changes = 0
        """How often something has changed in who holds what."""
        self.asked_for: Callable[[SimulatedTurn], None] | None = None
        """Told of every turn that looks for an engine."""
        self._router, self._expected_lengths, self._plain = router, expected_lengths, isinstance(router, LeastLoaded)
        self._engines: dict[int, SimulatedEngine] = {}
        self._able: dict[tuple[str, int, bool], Able] = {}
        self._newest: dict[str, int] = {}

    def add(self, engine: SimulatedEngine) -> None:
        """Let turns go to an engine."""
        self._engines[engine.lease_id] = engine
        engine.held.watch(self._forget)
        engine.asked = self.asked
        self._forget()

    def remove(self, lease_id: int) -> SimulatedEngine | None:
        """Let no more turns go to an engine; return it if it is known."""
        self._forget()
        return self._engines.pop(lease_id, None)

    def get(self, lease_id: int) -> SimulatedEngine | None:
        """Return an engine, if it is there."""
        return self._engines.get(lease_id)

    def values(self) -> ValuesView[SimulatedEngine]:
        """List the engines."""
        return self._engines.values()

    def items(self) -> ItemsView[int, SimulatedEngine]:
        """List the engines by lease."""
        return self._engines.items()

    def send(self, turn: SimulatedTurn) -> bool:
        """Let the engine answer that is named for a turn, else the one that the router chooses.

        Return False when nobody holds what it asks for.
        """
        if self.asked_for is not None:
            self.asked_for(turn)
        named = self._engines.get(turn.to) if turn.to else None
        if named is not None and named.held.answering(turn) is not None:
            named.ask(turn)
            return True
        key = turn.policy, turn.pinned, turn.follow != ""
        able = self._able.get(key)
        if able is None:
            able = self._able[key] = self._holding(turn)
        if not able.loads:
            return False
        able.engines[self._chosen(turn, able)].ask(turn)
        return True

    def _chosen(self, turn: SimulatedTurn, able: Able) -> str:
        """Return the engine that the router chooses; the one that goes by requests alone needs no words around it."""
        if self._plain or len(able.loads) == 1:
            return emptiest(able.loads).engine
        shown = able.loads
        if able.former:
            shown = [replace(load, newest=load.engine not in able.former) for load in shown]
        usual = 0.0
        if self._expected_lengths is not None:
            self._expected_lengths.look(turn)
            usual = self._expected_lengths.usual
        return self._router.choose(RouteRequest(int(turn.prompt), turn.expected, usual, turn.prefixes), shown).engine

    def ended(self, turn: SimulatedTurn) -> None:
        """Learn from a reply how long others may be."""
        if self._expected_lengths is not None:
            self._expected_lengths.note(turn)

    @property
    def learns(self) -> bool:
        """Tell whether replies that end say anything to the router."""
        return self._expected_lengths is not None

    def holding(self, turn: SimulatedTurn) -> tuple[int, ...]:
        """List who may answer a turn, by lease."""
        return tuple(lease for lease, one in self._engines.items() if one.held.answering(turn) is not None)

    def newest(self) -> dict[str, int]:
        """Return the newest version of each policy that an engine has."""
        if not self._newest:
            for engine in self._engines.values():
                for policy, version in engine.held.newest.items():
                    self._newest[policy] = max(self._newest.get(policy, version), version)
        return self._newest

    def _forget(self) -> None:
        self._able.clear()
        self._newest.clear()
        self.changes += 1

    def _holding(self, turn: SimulatedTurn) -> Able:
        held = {one.name: one for one in self._engines.values() if one.held.answering(turn) is not None}
        newest = {name: one.held.newest[turn.policy] for name, one in held.items()}
        former = frozenset(name for name, one in held.items() if one.held.answering(turn) != newest[name])
        return Able(held, [one.load for one in held.values()], former)
