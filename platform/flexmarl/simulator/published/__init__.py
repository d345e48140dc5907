"""Tables that others published, played by the same core and the same models as everything else.

A table names one workload, its parameters and a row per system; what a row changes are settings that a user could give.
"""

from flexmarl.simulator.published.counting import FigureCounts, counted, total
from flexmarl.simulator.published.reproducing import ReproducedCell, Reproduction, reproduce
from flexmarl.simulator.published.table import PublishedParameter, PublishedRow, PublishedTable, load_tables

__all__ = [
    "FigureCounts",
    "PublishedParameter",
    "PublishedRow",
    "PublishedTable",
    "ReproducedCell",
    "Reproduction",
    "counted",
    "load_tables",
    "reproduce",
    "total",
]
