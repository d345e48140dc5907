"""How many turns the episodes of a task may have. Code: `flexmarl.orchestrator.cohorts.turn_limits`."""

from typing import Literal

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.specification.reading import one_of, read_when


class TurnLimitOptions(Strict):
    """How many turns an episode of training may have before it ends unsolved."""

    type: Literal["none", "past_successes"] = "none"
    """`past_successes` (DART; experimental): as many as the longest success of its task had so far; a task that was
    never solved has no limit. What is cut off is finished, unsolved and scores 0."""
    least: int = Field(default=10, ge=1, le=1000, json_schema_extra=read_when((one_of("type", "past_successes"),)))
    """No task is limited to fewer turns, of all roles together."""

    @property
    def on(self) -> bool:
        """Tell whether episodes are cut off."""
        return self.type != "none"

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data
