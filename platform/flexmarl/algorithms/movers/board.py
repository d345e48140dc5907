"""The engines' sets while moves are chosen, one after the other."""

from collections import Counter

from flexmarl.algorithms.movers.base import Snapshot


class Board:
    """Who serves what, as the moves chosen so far leave it."""

    def __init__(self, seen: Snapshot) -> None:
        self.seen = seen
        self.serves = {engine: list(own) for engine, own in seen.serves.items()}
        self.movable = set(seen.movable)
        self.counts = Counter(name for own in self.serves.values() for name in own)
        """Policy -> engines that serve it."""

    def count(self, name: str) -> int:
        return self.counts[name]

    def engine_of(self, out: str, into: str) -> int | None:
        """Return the engine with least to do that could serve one policy instead of another."""
        able = [e for e in self.movable if out in self.serves[e] and into not in self.serves[e]]
        return min(able, key=lambda e: (self.seen.depths.get(e, 0), e), default=None)

    def give(self, engine: int, out: str, into: str) -> None:
        own = self.serves[engine]
        own[own.index(out)] = into
        self.counts[out] -= 1
        self.counts[into] += 1
        self.movable.discard(engine)


def engines_text(number: int) -> str:
    """Say how many engines."""
    return f"{number} engine{'' if number == 1 else 's'}"


def turns_text(number: int) -> str:
    """Say how many turns."""
    return f"{number} turn{'' if number == 1 else 's'}"
