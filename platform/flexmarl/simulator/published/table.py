"""What a published table says, and what of the simulation is known, assumed, chosen or fitted for it.

Invariants: a parameter has one value for all rows of a table; fitted ones name the rows they are fitted on, and those
rows are never counted as reproduced; a row changes nothing but its preset, settings of its specification, and what its
paper says that the systems do not share; a row that misses says why, and is shown as missed.
"""

from functools import cache
from importlib import resources
from typing import Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.resolve import layered

_LESS_IS_BETTER = frozenset({"step_s", "step_median_s", "rollout_s"})

Range = tuple[float, float]
"""Ends of what a source gives as a range; a simulated figure has to lie in it."""


class PublishedParameter(Strict):
    """A number of the models that the rows share."""

    value: float
    source: Literal["published", "assumed", "chosen", "fitted", "taken_over"]
    """From the paper; chosen beforehand for a stated reason; chosen by hand with the published figures in view; found
    so that rows come out right; or fitted or chosen so for another table."""
    note: str
    """Where it comes from, or why it is what it is."""
    paths: dict[str, float] = Field(min_length=1)
    """Dotted place in the scenario -> what the value is multiplied by there."""
    between: tuple[float, float] | None = None
    """Where a fit looks; only of a fitted one."""
    fitted_on: tuple[str, ...] = ()
    """Rows; only of a fitted one."""
    whole: bool = False
    """Rounded where it is used."""

    @model_validator(mode="after")
    def _fits_declare(self) -> Self:
        declared = (self.between is not None, bool(self.fitted_on))
        if declared != ((True, True) if self.source == "fitted" else (False, False)):
            raise ValueError("fitted parameters, and only these, say where a fit looks and which rows it looks at")
        return self


class PublishedRow(Strict):
    """What a paper measured of one system or setting."""

    title: str
    preset: str
    changes: dict[str, Any] = {}
    """Laid over the table's scenario."""
    published: float | Range | None
    """Null: none of its own; it is there for others to be compared with."""
    over: str = ""
    """The row that the figure is a gain over; empty: it is the figure itself."""
    beside: dict[str, float] = {}
    """Other figures of `SimulationReport.figures()` that were published of it; each counts as a row of its own."""
    gains: dict[str, float | Range] = {}
    """Other figures of it over those of `over`, or of the table's `ratios_over`; each counts as a row of its own."""
    misses: dict[str, str] = {}
    """Figure (`NAME_ratio` for its ratio) -> why it cannot be reached, or is not; the others have to be."""
    engine_price: float = Field(default=1.0, gt=0.0)
    """Of a second of a device that only generates, over that of one that trains. The figure `tokens_price`: trained
    tokens over what all devices cost while they were held."""

    @property
    def play(self) -> str:
        """Return what is equal for rows that are one simulation."""
        return f"{self.preset} {self.changes} {self.engine_price}"


class PublishedTable(Strict):
    title: str
    source: str
    kind: Literal["published", "again", "own", "sought"] = "published"
    """Whose figures its rows are: a paper's; those of another table here, played with other numbers, none of which has
    to be reached; this project's own; or gains that are sought, where more is as good. Counts of published figures
    leave out all but the first."""
    figure: str = "step_s"
    """Name of a figure of `SimulationReport.figures()`."""
    tolerance: float = Field(default=0.15, gt=0.0)
    """Share by which a row may differ; one that is published as a range has to lie in it."""
    criterion: Literal["mean_square", "worst"] = "mean_square"
    """What a fit makes small: the mean squared logarithm of simulated over published, or the largest share by which a
    row differs, where rows that contradict each other are all to stay within the tolerance."""
    seeds: int = Field(default=1, ge=1)
    """Simulations per row, of which the mean counts."""
    ratios_over: str = ""
    """The row by whose figures all others are divided, published by published and simulated by simulated: ratios do not
    depend on what one number fits to the scale of the table, and are judged like the figures."""
    scenario: dict[str, Any]
    over_presets: dict[str, Any] = {}
    """What all rows set otherwise than their presets; laid over each of them."""
    lies_over: str = ""
    """A table whose scenario lies under this one's, and whose parameters it takes over; and whose rows, if it has none
    of its own."""
    constants_of: str = ""
    """A table whose parameters this one takes over where it states none of the same name."""
    parameters: dict[Name, PublishedParameter] = {}
    chosen: dict[Name, str] = {}
    """Settings of rows or scenario that were chosen with the published figures in view -> what of them was seen."""
    rows: dict[Name, PublishedRow] = {}
    remarks: str = ""
    """What was left out of the systems, and what the comparison does not show."""

    @model_validator(mode="after")
    def _rows_exist(self) -> Self:
        if not self.rows and not self.lies_over:
            raise ValueError("a table has rows, or lies over one that has")
        if not self.rows:  # checked when it has those of the other
            return self
        named = {row.over for row in self.rows.values()} | {self.ratios_over, *self.fitted()}
        if unknown := sorted(named - set(self.rows) - {""}):
            raise ValueError(f"rows that do not exist: {', '.join(unknown)}")
        if bare := sorted(row for row in self.fitted() if not isinstance(self.rows[row].published, float)):
            raise ValueError(f"nothing is published to fit on: {', '.join(bare)}")
        for name, row in self.rows.items():
            own = {self.figure, *row.beside, *row.gains}
            if unknown := sorted(set(row.misses) - own - {f"{figure}_ratio" for figure in own}):
                raise ValueError(f"{name} says why figures are missed that it does not have: {', '.join(unknown)}")
            if row.gains and not (row.over or self.ratios_over):
                raise ValueError(f"{name} has gains, and nothing that they are over")
        return self

    @property
    def less_is_better(self) -> bool:
        """Tell whether a gain is the other's figure over one's own."""
        return self.figure in _LESS_IS_BETTER

    def fitted(self) -> frozenset[str]:
        """Return the rows that its own parameters are fitted on."""
        return frozenset(row for own in self.parameters.values() for row in own.fitted_on)


@cache
def load_tables() -> dict[str, PublishedTable]:
    """Read the tables, by name, with the parameters that they take over from others."""
    folder = resources.files("flexmarl.simulator.published").joinpath("tables")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    read = {
        f.name.removesuffix(".yaml"): PublishedTable.model_validate(yaml.safe_load(f.read_text("utf-8"))) for f in files
    }
    own = {name: _with_constants(table, read) for name, table in read.items()}
    return {name: _over_another(table, own) for name, table in own.items()}


def _with_constants(table: PublishedTable, read: dict[str, PublishedTable]) -> PublishedTable:
    if not table.constants_of:
        return table
    taken = _taken_over(read[table.constants_of], table.constants_of)
    return table.model_copy(update={"parameters": taken | table.parameters})


def _over_another(table: PublishedTable, read: dict[str, PublishedTable]) -> PublishedTable:
    if not table.lies_over:
        return table
    under = read[table.lies_over]
    lain = {
        "scenario": layered(under.scenario, table.scenario),
        "over_presets": layered(under.over_presets, table.over_presets),
        "parameters": _taken_over(under, table.lies_over) | table.parameters,
        "rows": table.rows or under.rows,
        "chosen": table.chosen if table.rows else under.chosen | table.chosen,
        "ratios_over": table.ratios_over or (under.ratios_over if not table.rows else ""),
    }
    return PublishedTable.model_validate(table.model_copy(update=lain).model_dump())


def _taken_over(other: PublishedTable, called: str) -> dict[str, PublishedParameter]:
    """Return another table's parameters, none of which is fitted here."""
    stays = ("published", "assumed")
    return {
        name: own.model_copy(
            update={
                "source": own.source if own.source in stays else "taken_over",
                "note": f"{own.note} ({own.source.replace('_', ' ')} for the table {called})",
                "between": None,
                "fitted_on": (),
            }
        )
        for name, own in other.parameters.items()
    }
