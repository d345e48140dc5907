"""What a row's reward counts as: the score it was given, or that seen beside lengths, history or the team."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions, Readiness
from flexmarl.contracts.problems import Problem

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class ShapingOptions(PluginOptions):
    """How a row's reward is transformed before advantages are computed."""

    needs: ClassVar[Readiness] = Readiness.EPISODE
    of_turns: ClassVar[bool] = False
    """Whether it replaces the scores of turns, which an advantage then has to compare turn by turn."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse scores of turns where episodes are compared, and settings of those that it replaces."""
        advantage = spec.algorithm.advantage
        plain = (("gamma", advantage.gamma, 1.0), ("turn_rewards", "joint" if advantage.joint else "own", "own"))
        for name, value, default in plain if self.of_turns else ():
            if value != default:
                yield Problem(
                    pointer=f"/algorithm/advantage/{name}",
                    code="not_read",
                    detail=f"{name} is {value}, and {self.type} does not use it.",
                    hint=f"Remove it, or set {default}.",
                )
        if self.of_turns and not spec.algorithm.advantage.per_turn:
            yield Problem(
                pointer="/algorithm/shaping/type",
                code="needs_per_turn",
                detail=f"{self.type} shapes the scores of turns and needs per_turn.",
                hint="Set per_turn: true in /algorithm/advantage, or shaping: none.",
            )


class NoShapingOptions(ShapingOptions):
    """Rewards are used as they are."""

    type: Literal["none"] = "none"

    needs: ClassVar[Readiness] = Readiness.ROW


class OverlongOptions(ShapingOptions):
    """Penalises replies near the length limit, as in DAPO. Filters use the reward before the penalty."""

    type: Literal["overlong"] = "overlong"
    buffer_tokens: int = Field(default=4, ge=1, le=1_000_000)
    """Last tokens of a role's longest reply over which the penalty grows linearly from 0 to `penalty`."""
    penalty: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Penalty of a reply of maximum length."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse a buffer that is longer than a role's longest reply."""
        trained = {role: spec.longest_reply(role) for role, agent in spec.agents.items() if agent.trainable}
        shortest = min(trained, key=lambda role: trained[role], default=None)
        if shortest is not None and self.buffer_tokens > trained[shortest]:
            yield Problem(
                pointer="/algorithm/shaping/buffer_tokens",
                code="out_of_range",
                detail=f"A reply of {shortest} has {trained[shortest]} tokens at most, so the buffer would cover "
                "all of it.",
                hint=f"Set {trained[shortest]} or less.",
            )


class MartiOptions(ShapingOptions):
    """Scores a turn relative to earlier scores, as in MARTI; needs `per_turn`."""

    type: Literal["marti"] = "marti"
    form: Literal["margin", "quality"] = "margin"
    """`margin`: difference to the mean Q of earlier scores; `quality`: Q for a right answer, Q - 1 for a wrong one."""
    strength: float = Field(default=0.5, gt=0.0, le=10.0)
    """Weight of the shaping term."""
    history: Literal["role", "team"] = "role"
    """Earlier turns of the role itself, or of all roles."""

    of_turns: ClassVar[bool] = True


class MaporlOptions(ShapingOptions):
    """A turn is also credited with later team scores, as in MAPoRL; needs `per_turn`."""

    type: Literal["maporl"] = "maporl"
    gamma: float = Field(default=0.3, ge=0.0, le=1.0)
    """Discount per turn of later scores."""

    of_turns: ClassVar[bool] = True


SHAPING: Kind[ShapingOptions] = Kind(
    "shaping", "/algorithm/shaping", ShapingOptions, (NoShapingOptions, OverlongOptions, MartiOptions, MaporlOptions)
)
