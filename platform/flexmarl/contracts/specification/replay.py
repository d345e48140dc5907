"""Replay: what a step has trained is trained again by later ones. Code: `flexmarl.algorithms.replay` and `.rescue`."""

from typing import Literal

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.specification.demonstrations import NamedRows
from flexmarl.contracts.specification.reading import one_of, read_when

_ARCHIVE = read_when((one_of("type", "archive"),))
_RESCUE = read_when((one_of("type", "rescue"),))
_ANY = read_when((one_of("type", "archive", "rescue"),))


class ReplayOptions(Strict):
    """Earlier groups or successes of the run that are trained again."""

    type: Literal["none", "archive", "rescue"] = "none"
    """`archive`: each step trains, besides its own groups, some of earlier steps with the advantages and
    log-probabilities they had. `rescue`: where all members of a group fail at a task that was solved before, its newest
    success takes the place of one of them; experimental. Both need a loss or a correction with the ratio p /
    p_engine."""
    share: float = Field(default=0.25, ge=0.0, le=0.9, json_schema_extra=_ARCHIVE)
    """Maximum share of a step's groups that come from the archive; 0: none. The step's own groups stay
    `tasks_per_step`."""
    max_age: int = Field(default=4, ge=1, le=64, json_schema_extra=_ANY)
    """Maximum age of a replayed row in versions: trained version minus that of its first token."""
    max_uses: int = Field(default=1, ge=1, le=64, json_schema_extra=_ANY)
    """How often a group or a success is replayed at most, over all steps; never twice in one."""
    order: Literal["earliest_deadline", "newest"] = Field(default="earliest_deadline", json_schema_extra=_ARCHIVE)
    """Which groups are taken first: those that grow too old first, or the newest."""
    weight: float = Field(default=1.0, gt=0.0, le=1.0, json_schema_extra=_RESCUE)
    """How much a row of an injected success counts beside a fresh one, at most as much."""
    begins_with: NamedRows | None = Field(default=None, json_schema_extra=_ANY)
    """Imported rows that the archive, or the pool of successes, has before the first step, as old as version 0; absent:
    it begins empty."""

    @property
    def on(self) -> bool:
        """Tell whether earlier rows are trained again."""
        return self.type != "none"

    @property
    def rescues(self) -> bool:
        """Tell whether stored successes stand in for members of groups that failed."""
        return self.type == "rescue"

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(data.get("begins_with"), str):
            data = {**data, "begins_with": {"name": data["begins_with"]}}
        return {"type": data} if isinstance(data, str) else data
