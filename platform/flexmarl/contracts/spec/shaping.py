"""What a row's reward counts as: the score it was given, or that seen beside lengths, history or the team."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from flexmarl.contracts.base import Strict


class NoShaping(Strict):
    """A reward counts as it is."""

    type: Literal["none"] = "none"


class Overlong(Strict):
    """A reply costs more the nearer it comes to its longest, as in DAPO. Filters judge by the reward before that."""

    type: Literal["overlong"] = "overlong"
    buffer_tokens: int = Field(default=4, ge=1, le=1_000_000)
    """Last tokens of `sampling.max_tokens` in which the cost rises in a line, from nothing to `penalty`."""
    penalty: float = Field(default=1.0, gt=0.0, le=1000.0)
    """What a reply of the longest length is taken off."""


class Marti(Strict):
    """A turn's score is judged by the scores before it, as in MARTI; needs `per_turn`."""

    type: Literal["marti"] = "marti"
    form: Literal["margin", "quality"] = "margin"
    """`margin`: what it is above their mean Q; `quality`: Q for a right answer, Q - 1 for a wrong one."""
    strength: float = Field(default=0.5, gt=0.0, le=10.0)
    """How much that counts beside the score itself."""
    history: Literal["role", "team"] = "role"
    """Earlier turns of the role itself, or of everybody."""


class Maporl(Strict):
    """A turn also earns what the team scores later, as in MAPoRL; needs `per_turn`."""

    type: Literal["maporl"] = "maporl"
    gamma: float = Field(default=0.3, ge=0.0, le=1.0)
    """Weight of the next turn beside this one, of the one after that squared, and so on."""


def _typed(data: object) -> object:
    """A word is a type."""
    return {"type": data} if isinstance(data, str) else data


Shaping = NoShaping | Overlong | Marti | Maporl
AnyShaping = Annotated[Annotated[Shaping, Field(discriminator="type")], BeforeValidator(_typed)]
