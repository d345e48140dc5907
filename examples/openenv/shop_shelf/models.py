"""What is said to the environment of the shop shelf, and what it says."""

from typing import Literal

from openenv.core.env_server.types import Action, Observation
from pydantic import Field, field_validator


class ShopShelfAction(Action):
    """Pieces that are taken from the shelf."""

    item: Literal["apple", "bread", "mug"] = Field(..., description="What is taken")
    pieces: int = Field(..., ge=1, le=9, description="How many of it")

    @field_validator("pieces")
    @classmethod
    def _shelf_has_pairs(cls, pieces: int) -> int:
        if pieces == 7:
            raise ValueError("7 pieces are never taken")
        return pieces


class ShopShelfObservation(Observation):
    """What the basket needs."""

    missing: dict[str, int] = Field(default_factory=dict, description="Pieces that are still to be taken")
