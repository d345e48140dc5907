"""Demonstrations that are drawn in passes through a list of lines.

Invariants: each pass goes once through all of them, in an order of its own that depends on the seed; what cannot be
learned from is left out of every pass and counted once.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from flexmarl.contracts.row_order import row_of
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.wire import TrainRow


class Passes(ABC):
    def __init__(self, lines: Sequence[bytes], seed: int) -> None:
        self._lines = lines
        self._seed = seed
        self._places = 0
        """Of the order, that were drawn or left out."""
        self._rows: dict[int, list[TrainRow]] = {}
        """By number of the line; no rows: it is left out."""

    @abstractmethod
    def read(self, line: bytes) -> list[TrainRow]:
        """Return the rows of a line; none where it is left out."""

    @abstractmethod
    def none_left(self) -> str:
        """Say why all are left out."""

    def draw(self, count: int) -> list[TrainRow]:
        """Return the rows of the next lines. Raises TrainerRefusal where all are left out."""
        found: list[TrainRow] = []
        drawn = 0
        while drawn < count:
            rows = self._next()
            found += rows
            drawn += bool(rows)
            if len(self._rows) == len(self._lines) and not any(self._rows.values()):
                raise TrainerRefusal(RefusalCode.NO_DEMONSTRATIONS, self.none_left())
        return found

    def counts(self) -> tuple[int, int]:
        """Return how many lines were learned from, and how many left out."""
        used = sum(map(bool, self._rows.values()))
        return used, len(self._rows) - used

    def _next(self) -> list[TrainRow]:
        if not self._lines:
            return []
        number = row_of(self._places, len(self._lines), self._seed)
        self._places += 1
        if number not in self._rows:
            self._rows[number] = self.read(self._lines[number])
        return self._rows[number]
