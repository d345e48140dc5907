"""What a published table says, and what of the simulation is known, assumed or fitted for it.

Invariants: a parameter has one value for all rows of a table; fitted ones name the rows they are fitted on, and those
rows are never counted as reproduced; a row changes nothing but its preset, settings of its specification, and what its
paper says that the systems do not share.
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


class PublishedParameter(Strict):
    """A number of the models that the rows share."""

    value: float
    source: Literal["published", "assumed", "fitted"]
    """From the paper; chosen beforehand for a stated reason; found so that rows come out right."""
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
    published: float | None
    """Null: none of its own; it is there for others to be compared with."""
    over: str = ""
    """The row that the figure is a gain over; empty: it is the figure itself."""
    beside: dict[str, float] = {}
    """Other figures of `Report.figures()` that were published of it; each counts as a row of its own."""
    why: str = ""
    """Why it cannot be reached, with the arithmetic; empty: it has to be."""


class PublishedTable(Strict):
    title: str
    source: str
    figure: str = "step_s"
    """Name of a figure of `Report.figures()`."""
    tolerance: float = Field(default=0.15, gt=0.0)
    """Share by which a row may differ."""
    criterion: Literal["mean_square", "worst"] = "mean_square"
    """What a fit makes small: the mean squared logarithm of simulated over published, or the largest share by which a
    row differs, where rows that contradict each other are all to stay within the tolerance."""
    seeds: int = Field(default=1, ge=1)
    """Simulations per row, of which the mean counts."""
    sought: bool = False
    """Nobody published its figures: they are gains that are sought, and more is as good."""
    scenario: dict[str, Any]
    over_presets: dict[str, Any] = {}
    """What all rows set otherwise than their presets; laid over each of them."""
    lies_over: str = ""
    """A table whose scenario lies under this one's, and whose parameters it takes over."""
    constants_of: str = ""
    """A table whose parameters this one takes over where it states none of the same name."""
    parameters: dict[Name, PublishedParameter] = {}
    rows: dict[Name, PublishedRow] = Field(min_length=1)
    remarks: str = ""
    """What was left out of the systems, and what the comparison does not show."""

    @model_validator(mode="after")
    def _rows_exist(self) -> Self:
        named = {row.over for row in self.rows.values() if row.over}
        named |= {row for own in self.parameters.values() for row in own.fitted_on}
        if unknown := sorted(named - set(self.rows)):
            raise ValueError(f"rows that do not exist: {', '.join(unknown)}")
        if bare := sorted(row for row in self.fitted() if self.rows[row].published is None):
            raise ValueError(f"nothing is published to fit on: {', '.join(bare)}")
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
    taken = _taken_over(under, table.lies_over)
    scenario, over = layered(under.scenario, table.scenario), layered(under.over_presets, table.over_presets)
    return table.model_copy(update={"scenario": scenario, "over_presets": over, "parameters": taken | table.parameters})


def _taken_over(other: PublishedTable, called: str) -> dict[str, PublishedParameter]:
    """Return another table's parameters, none of which is fitted here."""
    return {
        name: own.model_copy(
            update={
                "source": "published" if own.source == "published" else "assumed",
                "note": f"{own.note} ({own.source} for the table {called})",
                "between": None,
                "fitted_on": (),
            }
        )
        for name, own in other.parameters.items()
    }
