"""Play the rows of a published table and set what comes out beside what was published.

Invariant: a row is in reach or out of it by its own figure; rows that parameters were fitted on are told apart, but
their ratios are judged like all others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from statistics import fmean
from typing import Any, Literal

from flexmarl.contracts.resolve import layered
from flexmarl.simulator.published.table import PublishedParameter, PublishedRow, PublishedTable, Range
from flexmarl.simulator.runs import simulate
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario

Standing = Literal["fitted", "reached", "missed", "failed"]
"""Fitted on; within tolerance; outside it, which the table says; outside it, where it has to be reached."""


@dataclass(frozen=True, slots=True)
class ReproducedCell:
    """A row's figure, as published and as simulated."""

    published: float | Range
    simulated: float
    standing: Standing

    @property
    def error(self) -> float:
        """Return the share by which the simulated figure differs, from the nearer end of a range."""
        low, high = ends(self.published)
        return self.simulated / min(max(self.simulated, low), high) - 1.0


@dataclass(frozen=True, slots=True)
class Reproduction:
    cells: dict[str, ReproducedCell]
    """Row, or `ROW.FIGURE` -> its figure."""
    figures: dict[str, tuple[dict[str, float], ...]]
    """Row -> all figures of every simulation."""
    ratios: dict[str, ReproducedCell] = field(default_factory=dict)
    """The same names -> the figure over that of the row `ratios_over`."""

    @property
    def failed(self) -> tuple[str, ...]:
        """Name the rows that had to be reached and were not, by figure or by ratio."""
        ratios = {f"{name} (ratio)": cell for name, cell in self.ratios.items()}
        return tuple(name for name, cell in (self.cells | ratios).items() if cell.standing == "failed")


def ends(published: float | Range) -> Range:
    """Return a published figure as a range."""
    return published if isinstance(published, tuple) else (published, published)


def reproduce(table: PublishedTable, values: Mapping[str, float] | None = None) -> Reproduction:
    """Play every row. `values` takes the place of parameters' own. Raises SpecProblems and SimulationError."""
    once: dict[str, tuple[dict[str, float], ...]] = {}  # rows that set the same are one simulation
    figures = {}
    for name, row in table.rows.items():
        figures[name] = once[row.play] = once.get(row.play) or played(table, row, values or {})
    plain = {name: _means(found) for name, found in figures.items()}
    fitted = table.fitted()
    cells = {}
    for name, row in table.rows.items():
        own = plain[name]
        if row.published is not None:
            of = {other: one[table.figure] for other, one in plain.items()}
            found = compared(table, row, of, name)
            cells[name] = _cell(table, row, table.figure, row.published, found, name in fitted)
        for figure, published in row.beside.items():
            cells[f"{name}.{figure}"] = _cell(table, row, figure, published, own[figure], name in fitted)
        for figure, gain in row.gains.items():
            found = own[figure] / plain[row.over or table.ratios_over][figure]
            cells[f"{name}.{figure}"] = _cell(table, row, figure, gain, found, name in fitted)
    return Reproduction(cells, figures, _ratios(table, cells))


def played(table: PublishedTable, row: PublishedRow, values: Mapping[str, float]) -> tuple[dict[str, float], ...]:
    """Simulate a row once per seed."""
    made = (scenario_of(table, row, values, {"seed": seed}) for seed in range(table.seeds))
    return tuple(_played(one, row.engine_price) for one in made)


def _played(scenario: Scenario, engine_price: float) -> dict[str, float]:
    report = simulate(scenario)
    cost = engine_price * report.held_s["engine"] + report.held_s["trainer"]
    return report.figures() | {"tokens_price": report.tokens / cost}


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
    errors = [cells[name].error for name in rows]
    if table.criterion == "worst":
        return max(map(abs, errors))
    return fmean(log(1.0 + error) ** 2 for error in errors)


def _means(found: tuple[dict[str, float], ...]) -> dict[str, float]:
    return {figure: fmean(one[figure] for one in found) for figure in found[0]}


def _ratios(table: PublishedTable, cells: Mapping[str, ReproducedCell]) -> dict[str, ReproducedCell]:
    """Return each figure over that of one row. That both are fitted excuses no ratio that is out of reach."""
    found = {}
    for name, cell in cells.items():
        row, _, figure = name.partition(".")
        base = cells.get(f"{table.ratios_over}.{figure}" if figure else table.ratios_over)
        if base is None or row == table.ratios_over or figure in table.rows[row].gains:
            continue
        (of, over) = (ends(one.published)[0] for one in (cell, base))
        own = f"{figure or table.figure}_ratio"
        judged = _cell(table, table.rows[row], own, of / over, cell.simulated / base.simulated, fitted=False)
        both = cell.standing == base.standing == "fitted" and judged.standing == "reached"
        found[name] = ReproducedCell(judged.published, judged.simulated, "fitted") if both else judged
    return found


def _cell(
    table: PublishedTable, row: PublishedRow, figure: str, published: float | Range, simulated: float, fitted: bool
) -> ReproducedCell:
    low, high = ends(published)
    slack = 0.0 if high > low else table.tolerance
    standing: Standing = "missed" if row.misses.get(figure) or table.kind == "again" else "failed"
    if fitted and figure == table.figure:
        standing = "fitted"
    elif simulated >= low if table.kind == "sought" else low * (1 - slack) <= simulated <= high * (1 + slack):
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
