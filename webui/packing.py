"""Chart data in few bytes: a list of numbers travels once, however many charts draw it.

Charts of a run share their steps, a line and its table share their values, and a smoothed line follows from the raw
one. `packed` puts long lists of plain values into one pool and leaves their place behind; a `Smoothed` list travels as
the place of its values and how much of the last point it keeps. `static/webui/js/packing.js` undoes it.
"""

import math
from collections.abc import Sequence
from typing import Any

from webui.figures.base import Smoothed

SHORT = 8
"""Lists below this stay where they are: their place would be as long."""


def packed(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data with its long lists in the member `lists`."""
    pool = _Pool()
    body = pool.placed(data)
    return {**body, "lists": pool.lists}


def shown(value: Any) -> Any:
    """Keep the digits of a figure that a chart can show."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.4g}")


class _Pool:
    """Lists already seen, by their values."""

    def __init__(self) -> None:
        self.lists: list[list[Any]] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def placed(self, data: Any) -> Any:
        """Replace the long lists inside of some data."""
        if isinstance(data, dict):
            return {
                name: self._table(member) if name == "table" else self.placed(member) for name, member in data.items()
            }
        if isinstance(data, Smoothed) and len(data) >= SHORT:
            return {"$": self._place(data.of), "keep": data.keep}
        if isinstance(data, list | tuple):
            plain = len(data) >= SHORT and all(isinstance(value, int | float | str) or value is None for value in data)
            return {"$": self._place(data)} if plain else [self.placed(member) for member in data]
        return shown(data)

    def _table(self, table: dict[str, Any]) -> dict[str, Any]:
        """Rows travel as columns: those are what charts draw."""
        columns = [self.placed(list(column)) for column in zip(*table["rows"], strict=True)]
        return {"columns": table["columns"], "by_column": columns}

    def _place(self, values: Sequence[Any]) -> int:
        key = tuple(shown(value) for value in values)
        if key not in self._places:
            self._places[key] = len(self.lists)
            self.lists.append(list(key))
        return self._places[key]
