"""Which game the team plays. One variant per environment; the type is the name."""

from typing import Annotated, Literal

from pydantic import Field

from flexmarl.contracts.base import Strict


class Latency(Strict):
    """Real waiting time an environment adds before it answers a turn: log-normal, capped."""

    scale_s: float = Field(ge=0.0, le=60.0)
    """Median of the wait."""
    sigma: float = Field(default=1.0, ge=0.0, le=3.0)
    cap_s: float = Field(default=10.0, gt=0.0, le=600.0)


class _Environment(Strict):
    latency: Latency | None = None
    """Real waiting time before each environment answer; none by default."""


class ReferenceGame(_Environment):
    """A speaker names an object with invented words, a listener picks its attributes. Reward: share of attributes right."""

    type: Literal["reference_game"] = "reference_game"
    attributes: int = Field(default=2, ge=1, le=4)
    values: int = Field(default=4, ge=2, le=8)
    """Values per attribute; there are values ** attributes objects."""
    symbols: int = Field(default=32, ge=2, le=64)
    """Size of the speaker's alphabet."""
    message_length: int = Field(default=2, ge=1, le=8)


class HotCold(_Environment):
    """A guesser finds a hidden number with the one-token hints of a hinter who knows it."""

    type: Literal["hot_cold"] = "hot_cold"
    numbers: int = Field(default=8, ge=2, le=32)
    guesses: int = Field(default=4, ge=1, le=16)
    symbols: int = Field(default=8, ge=2, le=32)


class Arithmetic(_Environment):
    """Planner, solver and an honest verifier on `(a op b op c) mod m`."""

    type: Literal["arithmetic"] = "arithmetic"
    modulus: int = Field(default=5, ge=3, le=11)
    solver_attempts: int = Field(default=2, ge=1, le=4)
    corrupt_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of verifier inputs whose answer is replaced by a wrong one, so that accepting is not always right."""


class Kitchen(_Environment):
    """Cooks with split duties hand dishes over a counter, in the manner of CuisineWorld. Score: dishes served."""

    type: Literal["kitchen"] = "kitchen"
    cooks: int = Field(default=2, ge=2, le=4)
    turns: int = Field(default=8, ge=4, le=64)
    actions_per_turn: int = Field(default=2, ge=1, le=4)


EnvironmentSpec = Annotated[ReferenceGame | HotCold | Arithmetic | Kitchen, Field(discriminator="type")]
