"""Turns that wait at an engine, or for weights, while others that came later are answered again and again.

Looked at once a second at most, when a turn is asked, from outside: who waits and who is answered, never why. Turns
that came between the same two looks count as equals, and whoever has a higher rank than another overtakes nobody.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.rollout.playing import RolloutModel

LOOK_S = 1.0
OVERTAKEN = 8
"""So many that came later and went first are no coincidence of two looks."""
Place = str | tuple[str, int]
"""Where turns wait: an engine, or the weights (policy, version) that no engine holds."""


class StarvedInterval(NamedTuple):
    since: float
    until: float
    evidence: str


@dataclass(slots=True)
class _Seen:
    turn: SimulatedTurn
    """Held, so that no other turn has its identity."""
    at: float
    passed: set[int] = field(default_factory=set)
    """Those that came later and were answered first."""


@dataclass(slots=True)
class Overtaking:
    playing: RolloutModel
    _next: float = 0.0
    _seen: dict[Place, dict[int, _Seen]] = field(default_factory=dict)
    _worst: tuple[int, StarvedInterval | None] = (0, None)

    def look(self, now: float) -> None:
        """See who waits, and who of those that came later is answered."""
        if now < self._next:
            return
        self._next = now + LOOK_S
        places: dict[Place, list[SimulatedTurn]] = {one.name: one.requests() for one in self.playing.engines.values()}
        for turn in self.playing.starved():
            places.setdefault((turn.policy, turn.pinned), []).append(turn)
        answered = [turn for turns in places.values() for turn in turns if turn.phase in ("prompt", "reply")]
        self._seen = {place: self._known(place, turns, now) for place, turns in places.items()}
        for place, seen in self._seen.items():
            served = self._served(place, answered)
            for one in seen.values():
                if one.turn.phase in ("queued", "asked"):
                    self._compare(place, one, served, now)

    def findings(self, short_s: float) -> list[StarvedInterval]:
        """Return the turn that was passed by most, if one waited for longer than that."""
        worst = self._worst[1]
        return [worst] if worst is not None and worst.until - worst.since > short_s else []

    def _known(self, place: Place, turns: Iterable[SimulatedTurn], now: float) -> dict[int, _Seen]:
        before = self._seen.get(place, {})
        return {id(turn): before.get(id(turn)) or _Seen(turn, now) for turn in turns}

    def _served(self, place: Place, answered: list[SimulatedTurn]) -> list[_Seen]:
        """List who is answered at an engine, or anywhere by the weights that turns wait for."""
        if isinstance(place, str):
            return [one for one in self._seen[place].values() if one.turn.phase in ("prompt", "reply")]
        known = {key: one for seen in self._seen.values() for key, one in seen.items()}
        return [known[id(turn)] for turn in answered if (turn.policy, turn.pinned) == place]

    def _compare(self, place: Place, one: _Seen, served: list[_Seen], now: float) -> None:
        one.passed |= {id(s.turn) for s in served if s.at > one.at and s.turn.rank <= one.turn.rank}
        if len(one.passed) >= max(OVERTAKEN, self._worst[0]):
            where = place if isinstance(place, str) else f"version {place[1]} of {place[0]}"
            evidence = (
                f"a turn of {one.turn.role or one.turn.policy} waits for {where} since {one.at:.1f} s; meanwhile "
                f"{len(one.passed)} turns that came later and rank no higher were answered there"
            )
            self._worst = len(one.passed), StarvedInterval(one.at, now, evidence)
