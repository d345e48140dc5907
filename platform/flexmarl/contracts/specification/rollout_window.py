"""How long engines have the devices that they share with trainers, in each step: the variants with their settings."""

from typing import Annotated, Literal

from pydantic import Field

from flexmarl.contracts.base import Strict


class PlayedWindow(Strict):
    """Until no episode is playing any more."""

    type: Literal["played"] = "played"


class FixedWindow(Strict):
    """So long from the start of a step; then replies that run there go on, with the tokens that they have, on engines
    with devices of their own, and trainers begin beside them (the seeding of RLBoost, arXiv 2510.19225)."""

    type: Literal["fixed"] = "fixed"
    seconds: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Seconds of each step in which shared devices generate."""


class MeasuredWindow(Strict):
    """As with `fixed`, and after each step a third of the difference is taken off or added between the time that
    trainers waited for samples and the time that the other engines had nothing to generate (RLBoost's rule)."""

    type: Literal["measured"] = "measured"
    first_s: float = Field(default=150.0, gt=0.0, le=86_400.0)
    """Seconds of the first step in which shared devices generate."""
    least_s: float = Field(default=5.0, ge=0.0, le=86_400.0)
    """The window never gets shorter than this."""


RolloutWindow = Annotated[PlayedWindow | FixedWindow | MeasuredWindow, Field(discriminator="type")]
