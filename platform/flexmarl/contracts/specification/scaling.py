"""How many engines a fleet asks for between its minimum and its maximum. Code: `flexmarl.algorithms.scaling`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.problems import broken_at
from flexmarl.contracts.specification.reading import one_of, read_when

_MEASURED = read_when((one_of("type", "dead_band"),))


class Scaling(Strict):
    """Size of an elastic fleet: read where `rollout_devices` is a range."""

    type: Literal["free", "dead_band"] = "free"
    """`free`: every free device of the pool joins, up to the maximum. `dead_band`: the run starts with the minimum, and
    its fleet follows the share of time in which trainers wait for samples, as measured."""
    grow_above: float = Field(default=0.10, gt=0.0, lt=1.0, json_schema_extra=_MEASURED)
    """Share of time in which trainers wait for samples, above which the fleet grows."""
    shrink_below: float = Field(default=0.05, ge=0.0, lt=1.0, json_schema_extra=_MEASURED)
    """Share of waiting below which it may shrink. Between the two nothing changes."""
    steps: int = Field(default=5, ge=1, le=100, json_schema_extra=_MEASURED)
    """Train steps over which is measured, all of them with the same engines."""
    hold_s: float = Field(default=60.0, ge=0.0, le=86_400.0, json_schema_extra=_MEASURED)
    """Least time between two changes in one direction. A reversal takes twice as long, the next one four times."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: Any) -> Any:
        return {"type": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _has_a_band(self) -> "Scaling":
        if self.shrink_below >= self.grow_above:
            raise broken_at(
                ["shrink_below"],
                f"shrink_below is {self.shrink_below:g} and must be less than grow_above, {self.grow_above:g}: "
                f"{self.grow_above / 2:g} is legal",
            )
        return self
