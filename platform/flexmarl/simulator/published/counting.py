"""How much of a published table could have come out wrong: its figures, and the numbers that were set by them."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from flexmarl.simulator.published.table import PublishedTable


@dataclass(frozen=True, slots=True)
class FigureCounts:
    """Figures of a table and the numbers behind them."""

    figures: int
    """Published ones that are simulated; those that one simulation stands beside count once, ratios of two never."""
    fitted: int
    """Numbers that a fit found on rows of the table."""
    taken_over: int
    """Numbers that were fitted or chosen so for another table."""
    chosen: int
    """Numbers and settings that were chosen by hand with the published figures in view."""
    free: int
    """Figures less what is fitted and chosen: how many could have come out wrong, at most."""


def counted(table: PublishedTable) -> FigureCounts:
    """Count what a table has; nothing is simulated for it."""
    sources = [own.source for own in table.parameters.values()]
    figures, fitted = len(_simulated(table)), sources.count("fitted")
    chosen = sources.count("chosen") + len(table.chosen)
    return FigureCounts(figures, fitted, sources.count("taken_over"), chosen, max(0, figures - fitted - chosen))


def total(tables: Iterable[PublishedTable]) -> FigureCounts:
    """Add up the tables whose figures others published, each figure once; this project's own have no part in it."""
    found = [counted(table) for table in tables if table.kind == "published"]
    return FigureCounts(*(sum(getattr(one, field.name) for one in found) for field in fields(FigureCounts)))


def _simulated(table: PublishedTable) -> set[tuple[str, str, str]]:
    """Return each simulated figure that stands beside a published one: its simulation, its name, what it is over."""
    plays = {name: row.play for name, row in table.rows.items()}
    found = set()
    for name, row in table.rows.items():
        if row.published is not None:
            found.add((plays[name], table.figure, plays.get(row.over, "")))
        found |= {(plays[name], figure, "") for figure in row.beside}
        found |= {(plays[name], figure, plays[row.over or table.ratios_over]) for figure in row.gains}
    return found
