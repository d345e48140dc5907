"""What a sweep searches, how, for what, and when it ends."""

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from flexmarl.contracts.resolve import leaves

MOST_TRIALS = 500
MOST_VALUES = 50
LEAST_RUNGS_STEP = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Parameter(_Strict):
    pointer: str = Field(min_length=2, max_length=300, pattern=r"^/")
    """JSON pointer into the specification; `*` stands for every name at its place, all of which get the same value."""


class ChoiceParameter(_Parameter):
    type: Literal["choice"]
    values: list[JsonValue] = Field(min_length=1, max_length=MOST_VALUES)

    def ends(self) -> list[tuple[str, Any]]:
        """Return the values that show whether all of them are legal, each with where it stands."""
        return [(f"/values/{index}", value) for index, value in enumerate(self.values)]

    def steps(self) -> list[Any]:
        """Return what a grid tries."""
        return list(self.values)


class _Range(_Parameter):
    log: bool = False
    """Search on a logarithmic scale."""
    points: int = Field(default=3, ge=2, le=MOST_VALUES)
    """Values that a grid tries, evenly spaced, both ends among them."""
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> "_Range":
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high}).")
        if self.log and self.low <= 0:
            raise ValueError("low must be above 0 on a logarithmic scale.")
        return self

    def ends(self) -> list[tuple[str, Any]]:
        """Return the values that show whether all of them are legal, each with where it stands."""
        return [("/low", self.at(0.0)), ("/high", self.at(1.0))]

    def steps(self) -> list[Any]:
        """Return what a grid tries."""
        return list(dict.fromkeys(self.at(index / (self.points - 1)) for index in range(self.points)))

    def at(self, share: float) -> float:
        """Return the value at a share of the range."""
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return min(max(value, self.low), self.high)


class FloatParameter(_Range):
    type: Literal["float"]


class IntParameter(_Range):
    type: Literal["int"]
    low: int
    high: int

    def at(self, share: float) -> int:
        """Return the whole value nearest to a share of the range."""
        return round(super().at(share))


SweepParameter = Annotated[ChoiceParameter | FloatParameter | IntParameter, Field(discriminator="type")]


class SearchPlan(_Strict):
    """A search over a base specification."""

    parameters: list[SweepParameter] = Field(min_length=1, max_length=10)
    method: Literal["grid", "random", "tpe", "halving"] = "random"
    """`halving` draws at random and keeps the best share of the runs that reach each rung."""
    metric: str = Field(default="reward/team", max_length=120)
    """A series of the team: its mean over the last tenth of the steps so far is the objective."""
    goal: Literal["maximize", "minimize"] = "maximize"
    trials: int = Field(default=10, ge=1, le=MOST_TRIALS)
    """Runs at most; a grid ends when it is complete."""
    parallel: int = Field(default=2, ge=1, le=50)
    """Runs that have not ended, at most."""
    early_stop: bool = False
    """Stop a run whose objective is below the median of the others at the same step."""
    grace_steps: int = Field(default=10, ge=1)
    """No run is judged before it; also the first rung of halving."""
    reduction: int = Field(default=3, ge=2, le=10)
    """Halving keeps one in so many; the next rung is so many times as far."""
    device_hours: float | None = Field(default=None, gt=0)
    """Time of devices, summed over the sweep's runs; None: no bound."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)

    @model_validator(mode="after")
    def _once(self) -> "SearchPlan":
        pointers = [one.pointer for one in self.parameters]
        if len(set(pointers)) < len(pointers):
            raise ValueError("A pointer is named by two parameters.")
        return self

    def grid(self) -> Iterator[dict[str, Any]]:
        """Yield every combination of values, the last parameter changing fastest."""
        for row in product(*(one.steps() for one in self.parameters)):
            yield {one.pointer: value for one, value in zip(self.parameters, row, strict=True)}

    @property
    def sign(self) -> int:
        """Factor by which a larger objective is a better one."""
        return 1 if self.goal == "maximize" else -1


def places(document: Mapping[str, Any], pointer: str) -> list[tuple[str, ...]]:
    """Return the paths of a document that a pointer names, `*` being every name; empty when there is none."""
    parts = pointer.removeprefix("/").split("/")
    found: list[tuple[str, ...]] = [()]
    for part in parts:
        further = []
        for path in found:
            node = at(document, path)
            if isinstance(node, Mapping):
                further += [(*path, name) for name in (sorted(node) if part == "*" else [part]) if name in node]
        found = further
    return found


def at(document: Any, path: tuple[str, ...]) -> Any:
    """Return what stands at a path."""
    for name in path:
        document = document[name]
    return document


def overrides(document: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the partial document that sets values at all places of their pointers."""
    made: dict[str, Any] = {}
    for pointer, value in values.items():
        for path in places(document, pointer):
            node = made
            for name in path[:-1]:
                node = node.setdefault(name, {})
            node[path[-1]] = value
    return made


def known_pointers(document: Mapping[str, Any]) -> list[str]:
    """List the pointers of a specification that have a value."""
    return [pointer for pointer, _ in leaves(document)]
