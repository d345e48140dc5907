"""What is said to the environment of the hidden number, and what it says."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class HiddenNumberAction(Action):
    """A guess, in the player's own words."""

    guess: str = Field(..., description="The number that you guess")


class HiddenNumberObservation(Observation):
    """What the player is told."""

    hint: str = Field(default="", description="Where the hidden number is")
    guesses_left: int = Field(default=0, description="How often the player may still guess")
