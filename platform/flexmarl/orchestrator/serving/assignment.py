"""Which policies an engine serves, where it cannot hold all of them. Pure: plain values in, plain values out.

Invariants: an engine serves no policy twice and no more than it has places; a free place is never left empty while a
policy could use it; a policy without an engine comes before any that has one. Equal values give equal answers: ties
fall to the first policy and the lowest engine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence


def engines_of(serves: Mapping[int, Sequence[str]]) -> dict[str, int]:
    """Count each policy's engines; policies without any are left out."""
    counts: dict[str, int] = {}
    for own in serves.values():
        for name in own:
            counts[name] = counts.get(name, 0) + 1
    return counts


def fill(
    serves: Mapping[int, Sequence[str]], places: int, expected: Mapping[str, float], waiting: Sequence[str] = ()
) -> list[tuple[int, str]]:
    """Give free places away; returns (engine, policy) in the order in which they are given.

    First those that wait, in their order, and others without an engine; then whoever has most to expect per engine.
    An engine with most room takes next.
    """
    if all(len(own) >= places for own in serves.values()):
        return []
    held = {engine: list(own) for engine, own in serves.items()}
    counts = Counter(engines_of(held))
    first = {name: -place for place, name in enumerate(reversed(waiting), 1)}
    found: list[tuple[int, str]] = []
    while True:
        room = [engine for engine, own in held.items() if len(own) < places]
        able = [name for name in expected if any(name not in held[engine] for engine in room)]
        if not able:
            return found
        name = min(able, key=lambda one: _turn(counts[one], expected[one], first.get(one, 0)))
        engine = min((e for e in room if name not in held[e]), key=lambda e: (len(held[e]), e))
        held[engine].append(name)
        counts[name] += 1
        found.append((engine, name))


def _turn(engines: int, expected: float, first: int) -> tuple[bool, int, float]:
    """Return what a policy is ordered by: one without an engine first, then by what an engine more would carry."""
    return engines > 0, first if not engines else 0, -expected / (engines + 1)
