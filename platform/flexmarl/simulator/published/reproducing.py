"""Play the rows of a published table and set what comes out beside what was published.

Invariant: a row is in reach or out of it by its own figure; rows that parameters were fitted on are told apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import Any, Literal

from flexmarl.contracts.resolve import layered
from flexmarl.simulator.published.table import PublishedParameter, PublishedRow, PublishedTable
from flexmarl.simulator.runs import simulate
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario

Standing = Literal["fitted", "reached", "missed", "explained"]


@dataclass(frozen=True, slots=True)
class ReproducedCell:
    """A row's figure, as published and as simulated."""

    published: float
    simulated: float
    standing: Standing

    @property
    def error(self) -> float:
        """Return the share by which the simulated figure differs."""
        return self.simulated / self.published - 1.0


@dataclass(frozen=True, slots=True)
class Reproduction:
    cells: dict[str, ReproducedCell]
    figures: dict[str, tuple[dict[str, float], ...]]
    """Row -> all figures of every simulation."""
    freedom: int
    """Published figures less fitted parameters: how many could have come out wrong."""

    @property
    def missed(self) -> tuple[str, ...]:
        """Name the rows that had to be reached and were not."""
        return tuple(name for name, cell in self.cells.items() if cell.standing == "missed")


def reproduce(table: PublishedTable, values: Mapping[str, float] | None = None) -> Reproduction:
    """Play every row. `values` takes the place of parameters' own. Raises SpecProblems and SimulationError."""
    once: dict[str, tuple[dict[str, float], ...]] = {}  # rows that set the same are one simulation
    figures = {}
    for name, row in table.rows.items():
        key = f"{row.preset} {row.changes}"
        figures[name] = once[key] = once.get(key) or played(table, row, values or {})
    plain = {name: fmean(one[table.figure] for one in found) for name, found in figures.items()}
    fitted = table.fitted()
    cells = {}
    for name, row in table.rows.items():
        if row.published is not None:
            cells[name] = _cell(table, row, row.published, compared(table, row, plain, name), name in fitted)
        for figure, published in row.beside.items():
            found = fmean(one[figure] for one in figures[name])
            cells[f"{name}.{figure}"] = _cell(table, row, published, found, name in fitted)
    freedom = len(cells) - sum(own.source == "fitted" for own in table.parameters.values())
    return Reproduction(cells, figures, freedom)


def played(table: PublishedTable, row: PublishedRow, values: Mapping[str, float]) -> tuple[dict[str, float], ...]:
    """Simulate a row once per seed."""
    made = (scenario_of(table, row, values, {"seed": seed}) for seed in range(table.seeds))
    return tuple(simulate(one).figures() for one in made)


def scenario_of(
    table: PublishedTable,
    row: PublishedRow,
    values: Mapping[str, float] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Scenario:
    """Return what a row plays: the table's scenario, its preset, what all rows set over that, parameters, its own."""
    found = values or {}
    given = [placed(own, found.get(name, own.value)) for name, own in table.parameters.items()]
    return compose(table.scenario, row.preset, layered(table.over_presets, *given, row.changes, changes or {}))


def compared(table: PublishedTable, row: PublishedRow, plain: Mapping[str, float], name: str) -> float:
    """Return what stands beside the published figure: the row's own, or its gain over another."""
    if not row.over:
        return plain[name]
    return plain[row.over] / plain[name] if table.less_is_better else plain[name] / plain[row.over]


def distance(table: PublishedTable, cells: Mapping[str, ReproducedCell], rows: tuple[str, ...]) -> float:
    """Return how far rows are off, as the table's criterion says."""
    if table.criterion == "worst":
        return max(abs(cells[name].error) for name in rows)
    return fmean(log(cells[name].simulated / cells[name].published) ** 2 for name in rows)


def _cell(table: PublishedTable, row: PublishedRow, published: float, simulated: float, fitted: bool) -> ReproducedCell:
    standing: Standing = "explained" if row.why else "missed"
    if fitted:
        standing = "fitted"
    elif simulated >= published if table.sought else abs(simulated / published - 1.0) <= table.tolerance:
        standing = "reached"
    return ReproducedCell(published, simulated, standing)


def placed(own: PublishedParameter, value: float) -> dict[str, Any]:
    """Write a value to all its places."""
    return layered(*(_at(path, value * times, own.whole) for path, times in own.paths.items()))


def _at(path: str, value: float, whole: bool) -> dict[str, Any]:
    placed: Any = round(value) if whole else value
    for part in reversed(path.split(".")):
        placed = {part: placed}
    return dict(placed)
