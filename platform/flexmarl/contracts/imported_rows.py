"""The fact that a run's archive of replay, or its pool of successes, begins with rows of another run: one of
`flexmarl.contracts.events`.
"""

from typing import Literal

from pydantic import Field

from flexmarl.contracts.base import Record
from flexmarl.contracts.ids import Name
from flexmarl.contracts.wire import EpisodeOutcome


class ImportedRowRef(Record):
    """A row of another run, as its step was taken on it."""

    member: int
    attempt: int
    role: Name
    turn: int
    """The first one of its chain."""
    advantages: tuple[float, ...]
    """Of each turn of its chain."""
    weight: float
    tokens: int = Field(ge=0)
    """Number of tokens that were sampled."""


class ImportedGroup(Record):
    """Rows of one group of another run, by the policy of this one that plays their roles."""

    draw: int = Field(lt=0)
    """No draw of this run has it."""
    rows: dict[Name, tuple[ImportedRowRef, ...]]


class ImportedSuccess(Record):
    """An episode of another run that solved a task of this one."""

    draw: int = Field(lt=0)
    """No draw of this run has it."""
    task: int = Field(ge=0)
    episode: EpisodeOutcome


class RowsImported(Record):
    """The archive of replay, or the pool of rescue, begins with rows of another run. They are in the store, in this
    event's transaction."""

    kind: Literal["rows_imported"] = "rows_imported"
    name: str
    """Under which they were imported."""
    rows: int
    """In the store."""
    groups: tuple[ImportedGroup, ...] = ()
    successes: tuple[ImportedSuccess, ...] = ()
