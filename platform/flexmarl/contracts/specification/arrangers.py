"""How often the rows of a step count. Code: `flexmarl.algorithms.arrangers`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions, Readiness
from flexmarl.contracts.problems import Problem

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class ArrangerOptions(PluginOptions):
    """How often each row of a policy counts in the step of a cohort."""

    needs: ClassVar[Readiness] = Readiness.BATCH
    arranges: ClassVar[bool] = True
    """Whether any row may count otherwise than once."""


class NoArrangerOptions(ArrangerOptions):
    """Every row counts once."""

    type: Literal["none"] = "none"

    needs: ClassVar[Readiness] = Readiness.ROW
    arranges: ClassVar[bool] = False


class AdvantageShuffleOptions(ArrangerOptions):
    """Pairs of members count as often as they are drawn, by the size of their advantages (Shuffle-R1). Experimental."""

    type: Literal["advantage_shuffle"] = "advantage_shuffle"
    rounds: int = Field(default=8, ge=1, le=64)
    """Rounds, in each of which a pair is drawn once at most: the most that a row can count."""

    bias: ClassVar[str] = "Rows count by the size of their pair's advantages, large ones up to `rounds` times."

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse what has no advantages when a cohort is settled, and a loss that makes pairs of its own."""
        advantage, loss = spec.algorithm.advantage, spec.algorithm.loss
        if advantage.needs.coarseness < Readiness.GROUP.coarseness:
            yield Problem(
                pointer="/algorithm/advantage/type",
                code="needs_group_advantage",
                detail=f"advantage_shuffle draws by the size of advantages, and {advantage.type} compares no members "
                "before a step is cut.",
                hint="Set grpo, or arranger: none in /sampling.",
            )
        if loss.paired:
            yield Problem(
                pointer="/algorithm/loss/type",
                code="not_with_arranger",
                detail=f"{loss.type} weights one pair of each group, and advantage_shuffle draws others.",
                hint="Set ppo_clip with advantage: grpo, or arranger: none in /sampling.",
            )


ARRANGER: Kind[ArrangerOptions] = Kind(
    "arranger", "/sampling/arranger", ArrangerOptions, (NoArrangerOptions, AdvantageShuffleOptions)
)
