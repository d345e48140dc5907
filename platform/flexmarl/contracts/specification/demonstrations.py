"""What a policy learns from before its first step: demonstrations of the environment, or conversations of a dataset."""

from typing import Any

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.specification.dataset import NamedDataset


class DatasetDemonstrations(Strict):
    """Conversations in the training rows of an imported dataset; held-out rows are never used."""

    dataset: NamedDataset
    """Which rows."""
    column: str = Field(default="", max_length=200, examples=["solution"])
    """Column that says what is learned: a text, which answers the row's prompt, or a list of messages, which is the
    whole conversation. Empty: the row's answer answers its prompt."""


CHAT_DEFAULTS: dict[str, Any] = {"batch_size": 16, "learning_rate": 1e-5, "max_seconds": 3600.0}
"""What a warm-up on conversations has where nothing is written: they are longer than replies of closed games."""


class SupervisedWarmup(Strict):
    """Cross-entropy steps on demonstrations before step 0; marked in every chart."""

    steps: int = Field(ge=1, le=10_000)
    batch_size: int = Field(default=256, ge=1, le=65_536)
    """Demonstrations per step; 16 with those of a dataset."""
    learning_rate: float = Field(default=2e-3, gt=0.0, le=1.0)
    """1e-5 with demonstrations of a dataset."""
    max_seconds: float = Field(default=3.0, gt=0.0)
    """No step begins later than this; the first one always does. 3600 with demonstrations of a dataset."""
    demonstrations: DatasetDemonstrations | None = None
    """Conversations of a dataset, for a language model with a chat template; those of the environment when absent."""

    @model_validator(mode="before")
    @classmethod
    def _as_fits_conversations(cls, data: object) -> object:
        chat = isinstance(data, dict) and data.get("demonstrations") is not None
        return {**CHAT_DEFAULTS, **data} if chat else data  # type: ignore[dict-item] # a dict, as was seen
