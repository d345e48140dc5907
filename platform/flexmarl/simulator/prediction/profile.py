"""How fast models, devices and the platform are, each figure with its range and where it comes from.

Invariants: low <= likely <= high; a figure that nobody measured or declared has a default with a wide range, and says
so. Figures of a model are kept per policy, as `engine.token planner`; the platform's have one word.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pydantic import model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel

Source = Literal["runs", "profile", "declared", "default"]
End = Literal["low", "likely", "high"]
Unit = Literal["s", "tokens", "processes"]


class Ends(NamedTuple):
    """Which end of its range is taken of what models and episodes take, and of what the platform itself takes."""

    models: End = "likely"
    platform: End = "likely"


class Known(NamedTuple):
    """What a figure is, and what is taken for it where nothing is known: for a model of the factory, for others."""

    unit: Unit
    meaning: str
    small: float
    large: float
    factor: float = 3.0
    """A default may be so many times smaller or larger."""


OF_A_MODEL: dict[str, Known] = {
    "engine.token": Known("s", "A decode step for one request", 0.0015, 0.01),
    "engine.row": Known("s", "Additional time of a decode step per further request", 3e-5, 2e-4),
    "engine.prompt": Known("s", "A prompt token", 1e-5, 1.25e-4),
    "engine.load": Known("s", "Loading new weights on an engine", 0.004, 2.0),
    "trainer.micro_batch": Known("s", "Fixed time of a micro-batch", 0.005, 0.05),
    "trainer.token": Known("s", "Gradient of a token", 2e-5, 2e-4),
    "trainer.step": Known("s", "Optimizer step, with the new weights stored", 0.008, 1.0),
    "trainer.create": Known("s", "Creating a policy, including warm-up", 0.5, 20.0, 4.0),
    "trainer.swap": Known("s", "Suspending or resuming a policy", 0.02, 5.0),
}
OF_THE_PLATFORM: dict[str, Known] = {
    "platform.report": Known("s", "Latency from an event to the driver", 0.01, 0.01),
    "platform.decide": Known("s", "Driver time per event", 0.0015, 0.0015),
    "platform.hop": Known("s", "Latency from a decision to an engine or trainer", 0.005, 0.005),
    "platform.pick_up": Known("s", "Latency from a decision to a rollout worker", 0.01, 0.01),
    "platform.carry": Known("s", "Node time per trainer command", 0.006, 0.006),
    "platform.fetch": Known("s", "Reading a micro-batch while the trainer is idle", 0.015, 0.015),
    "platform.commit": Known("s", "Additional node time per optimizer step", 0.015, 0.015),
    "platform.settle": Known("s", "Time from a group's end until its rows are written", 0.02, 0.02),
    "platform.playing": Known("processes", "Other tasks competing for cores during rollout", 0.0, 0.0),
    "platform.training": Known("processes", "Other tasks competing for cores without rollout", 0.0, 0.0),
    "platform.both": Known("processes", "Other tasks competing for cores during rollout and training", 0.0, 0.0),
    "platform.turn": Known("s", "Rollout worker time per turn", 0.0002, 0.0002),
    "platform.start": Known("s", "Starting an engine or a trainer", 3.0, 20.0),
}
OF_A_ROLE: dict[str, Known] = {
    "role.prompt": Known("tokens", "Prompt of a turn", 32, 1024),
    "role.reply": Known("tokens", "Reply of a turn", 8, 512),
}


class ProfileFigure(Strict):
    low: float
    likely: float
    high: float
    source: Source
    of: str = ""
    """What it was read from, in words."""

    @model_validator(mode="after")
    def _in_order(self) -> "ProfileFigure":
        if not self.low <= self.likely <= self.high:
            raise ValueError(f"{self.low}, {self.likely}, {self.high} are not in order")
        return self

    @property
    def width(self) -> float:
        """Return how wide the range is, as a share of what is likely."""
        return (self.high - self.low) / self.likely if self.likely else 0.0


class Profile(Strict):
    figures: dict[str, ProfileFigure]
    lasts: tuple[float, float, float] | None = None
    """Turns of an episode, where its end is not fixed: mean, standard deviation, and the share of its square that lies
    between groups."""
    parameters: dict[str, int] = {}
    """Policy -> parameters of its model, where they are known."""
    cores: int = 0
    """Of the one host that everything runs on; 0: what runs beside each other does not slow each other down."""

    def at(self, name: str, ends: Ends, of: str = "") -> float:
        """Return one end of a figure."""
        end = ends.platform if name in OF_THE_PLATFORM else ends.models
        return float(getattr(self.figures[f"{name} {of}".rstrip()], end))


def declared(value: float, of: str) -> ProfileFigure:
    """Return a figure that the specification states."""
    return ProfileFigure(low=value, likely=value, high=value, source="declared", of=of)


def complete(spec: ExperimentSpec, known: Mapping[str, ProfileFigure]) -> dict[str, ProfileFigure]:
    """Return every figure that a prediction of an experiment needs: what is known, and defaults for the rest."""
    figures = dict(known)
    small = all(isinstance(policy.source, FactoryModel) for policy in spec.policies.values())
    for name, what in OF_THE_PLATFORM.items():
        figures.setdefault(name, _default(what, small))
    for policy, own in spec.policies.items():
        for name, what in OF_A_MODEL.items():
            figures.setdefault(f"{name} {policy}", _default(what, isinstance(own.source, FactoryModel)))
    return figures


def _default(what: Known, small: bool) -> ProfileFigure:
    likely = what.small if small else what.large
    return ProfileFigure(low=likely / what.factor, likely=likely, high=likely * what.factor, source="default")
