"""Find a table's fitted parameters anew: on the rows that they declare, within the bounds that they declare."""

from collections.abc import Mapping
from math import exp, log
from typing import Any

from scipy.optimize import minimize

from flexmarl.simulator.published.reproducing import distance, reproduce
from flexmarl.simulator.published.table import PublishedTable


def fit(table: PublishedTable, rounds: int = 60, without: str = "") -> dict[str, float]:
    """Return fitted parameters by name, found on their rows but `without`; at most `rounds` plays of these rows.

    Searched by Nelder and Mead over logarithms, for the table's criterion.
    """
    free = {name: own for name, own in table.parameters.items() if own.source == "fitted" and own.between}
    rows = tuple(name for name in table.rows if name in table.fitted() and name != without)
    if not free or not rows:
        return {}
    needed = set(rows) | {table.rows[name].over for name in rows} - {""}
    some = table.model_copy(update={"rows": {name: row for name, row in table.rows.items() if name in needed}})

    def missed(logs: Any) -> float:
        return distance(table, reproduce(some, _values(free, logs)).cells, rows)

    bounds = [(log(own.between[0]), log(own.between[1])) for own in free.values() if own.between]
    start = [min(max(log(own.value), low), high) for own, (low, high) in zip(free.values(), bounds, strict=True)]
    found = minimize(
        missed, start, method="Nelder-Mead", bounds=bounds, options={"maxfev": rounds, "xatol": 0.005, "fatol": 1e-5}
    )
    return _values(free, found.x)


def _values(free: Mapping[str, Any], logs: Any) -> dict[str, float]:
    return {name: exp(value) for name, value in zip(free, logs, strict=True)}
