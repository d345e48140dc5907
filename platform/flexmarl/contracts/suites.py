"""What models are evaluated on, and what is evaluated: the contents of a suite, and an entry of an evaluation."""

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.sampling import Sampling
from flexmarl.contracts.specification.team import ExternalModel, ModelSource, Precision

MOST_PARTS = 16
MOST_ENTRIES = 20


class SuitePart(Strict):
    """Held-out tasks of one environment, scored by it or by a reward."""

    name: Name = Field(examples=["sums"])
    environment: dict[str, Any] = Field(examples=[{"type": "sums", "largest": 9, "held_out": 20}])
    """As in a specification; the version of a dataset is pinned when the suite is saved."""
    reward: dict[str, Any] | None = None
    """As in a specification; the environment's own scores when absent."""
    tasks: int = Field(default=20, ge=1, le=65_536)
    """Number of held-out tasks."""


class SuiteContent(Strict):
    """Everything that two models must have in common to be compared: tasks, attempts, seed and sampling."""

    parts: tuple[SuitePart, ...] = Field(min_length=1, max_length=MOST_PARTS)
    attempts: int = Field(default=1, ge=1, le=1024)
    """Episodes of each task."""
    greedy: bool = True
    """Reply with the likeliest token at every place; false: sample."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Tasks and sampled tokens follow from it."""
    sampling: Sampling = Sampling()
    """Replies are as long as the environment of a part asks for, unless `max_tokens` is less."""

    @field_validator("parts")
    @classmethod
    def _each_name_once(cls, parts: tuple[SuitePart, ...]) -> tuple[SuitePart, ...]:
        names = [part.name for part in parts]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two parts are named {twice}; give each a name of its own")
        return parts

    @model_validator(mode="after")
    def _greedy_attempts_are_one(self) -> Self:
        if self.greedy and self.attempts > 1:
            raise ValueError(
                f"greedy replies do not differ between the {self.attempts} attempts of a task; "
                "set attempts: 1, or greedy: false"
            )
        return self


class EvaluatedModel(Strict):
    """A model that takes every seat of the environments; a checkpoint of a team brings each seat its own."""

    name: str = Field(default="", max_length=80)
    """What tables call it; made from the model when absent."""
    model: ModelSource | None = None
    """None: `external`."""
    precision: Precision | None = None
    """Precision of the weights; a checkpoint keeps that of its run, others have bf16, those of the factory fp32."""
    external: ExternalModel | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.model is None) is (self.external is None):
            raise ValueError("send either model or external")
        return self

    @property
    def label(self) -> str:
        """Return what tables call it."""
        if self.name:
            return self.name
        if self.external is not None:
            return self.external.model
        assert self.model is not None
        if self.model.type == "checkpoint":
            return f"{self.model.run} step {self.model.step}"
        return self.model.label


def roles_of(environment: dict[str, Any]) -> tuple[str, ...]:
    """Return the seats of an environment. Raises pydantic's ValidationError where it is none."""
    probe = ExperimentSpec.model_validate({"agents": {"nobody": {}}, "environment": environment})
    return tuple(role.name for role in probe.environment.facts().roles)
