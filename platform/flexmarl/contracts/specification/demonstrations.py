"""What a policy learns from before its first step: demonstrations of the environment, conversations of a dataset, or
rows that an earlier run exported."""

from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.problems import broken_at
from flexmarl.contracts.specification.dataset import NamedDataset


class DatasetDemonstrations(Strict):
    """Conversations in the training rows of an imported dataset; held-out rows are never used."""

    dataset: NamedDataset
    """Which rows."""
    column: str = Field(default="", max_length=200, examples=["solution"])
    """Column that says what is learned: a text, which answers the row's prompt, or a list of messages, which is the
    whole conversation. Empty: the row's answer answers its prompt."""


class NamedRows(Strict):
    """Rows that a run exported and somebody imported here."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "good_run"}]})

    name: Name = Field(examples=["good_run"])
    """Name under which they were imported."""
    project: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9_-]*$")
    """Project that has them; the run's own when absent."""
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Of the rows. Set when the run is created; what is written here is replaced."""
    tokenizers: dict[str, str] = {}
    """Role -> SHA-256 of the tokenizer that its rows' ids are of. Set when the run is created; what is written here is
    replaced."""


class ImportedRows(NamedRows):
    """Imported rows of the roles that the policy plays."""

    solved: bool = True
    """Only rows of episodes that solved their task."""
    least_score: float | None = None
    """Only rows whose role scored at least this in their episode; any when absent."""


GENTLE_DEFAULTS: dict[str, Any] = {"batch_size": 16, "learning_rate": 1e-5, "max_seconds": 3600.0}
"""What a warm-up on conversations or imported rows has where nothing is written: they are longer than replies of closed
games, and the model may be a large one."""


class SupervisedWarmup(Strict):
    """Cross-entropy steps on demonstrations before step 0; marked in every chart."""

    steps: int = Field(ge=1, le=10_000)
    batch_size: int = Field(default=256, ge=1, le=65_536)
    """Demonstrations per step; 16 with those of a dataset, or imported rows."""
    learning_rate: float = Field(default=2e-3, gt=0.0, le=1.0)
    """1e-5 with demonstrations of a dataset, or imported rows."""
    max_seconds: float = Field(default=3.0, gt=0.0)
    """No step begins later than this; the first one always does. 3600 with demonstrations of a dataset, or imported
    rows."""
    demonstrations: DatasetDemonstrations | None = None
    """Conversations of a dataset, for a language model with a chat template; those of the environment when absent."""

    rows: ImportedRows | None = None
    """Rows that an earlier run exported, in place of demonstrations."""

    @model_validator(mode="before")
    @classmethod
    def _as_fits_what_is_shown(cls, data: object) -> object:
        shown = [data.get("demonstrations"), data.get("rows")] if isinstance(data, dict) else []
        gentle = any(one is not None for one in shown)
        return {**GENTLE_DEFAULTS, **data} if gentle else data  # type: ignore[dict-item] # a dict, as was seen

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.demonstrations is not None and self.rows is not None:
            raise broken_at(("rows",), "demonstrations are named too; remove one of both")
        return self
