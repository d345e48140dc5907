"""Advantages: what a row did better or worse than expected. Their code is in `flexmarl.algorithms.advantages`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions, Readiness
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.reading import is_no_such, one_of, read_when
from flexmarl.contracts.specification.shaping import SHAPING

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


_OWN_TURNS = is_no_such(SHAPING, "of_turns")
_DISCOUNTED = read_when((_OWN_TURNS, one_of("per_turn", True)))
_BY_ROWS = read_when((is_no_such(LOSS, "paired"),))


class AdvantageOptions(PluginOptions):
    """What a row did better or worse than expected."""

    team_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """Weight of the team score in a role's reward; the rest is the role's own score."""
    per_turn: bool = Field(default=False, json_schema_extra=_BY_ROWS)
    """Compare the discounted reward-to-go of the same turn index across the group instead of episode scores."""
    gamma: float = Field(default=1.0, gt=0.0, le=1.0, json_schema_extra=_DISCOUNTED)
    """Discount factor per turn of the reward-to-go; only with `per_turn`, or `gae`."""

    needs: ClassVar[Readiness] = Readiness.GROUP
    """What a row is compared with."""
    judges_answers: ClassVar[bool] = True
    """Whether it can judge the answers to one turn by themselves, where the members of a group branch."""
    discounts_always: ClassVar[bool] = False
    """Whether `gamma` is read without `per_turn` too."""
    has_critic: ClassVar[bool] = False
    """Whether the trainer learns what to expect: then a row's gradient needs other rows of its micro-batch."""
    clones: ClassVar[bool] = False
    """Whether it is a weight, never below 0, of what is imitated: a step divides by the sum of weights."""

    @property
    def joint(self) -> bool:
        """Whether a role's turns are credited with what all roles earned."""
        return False

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse what speaks of turns where episodes are compared."""
        if self.gamma != 1.0 and not self.per_turn and not self.discounts_always:
            yield Problem(
                pointer="/algorithm/advantage/gamma",
                code="needs_per_turn",
                detail="gamma discounts the reward-to-go of turns and needs per_turn.",
                hint="Set per_turn: true, type: gae, or gamma: 1.",
            )
        if self.joint and not self.per_turn:
            yield Problem(
                pointer="/algorithm/advantage/turn_rewards",
                code="needs_per_turn",
                detail="turn_rewards: joint adds the turn rewards of all roles and needs per_turn.",
                hint="Set per_turn: true, or turn_rewards: own.",
            )


class TurnRewardOptions(AdvantageOptions):
    """An advantage of what turns earn, for whom the specification says."""

    turn_rewards: Literal["own", "joint"] = Field(default="own", json_schema_extra=_DISCOUNTED)
    """Turn rewards credited to a role: its own, or those of all roles at the same turn index; only with `per_turn`."""

    @property
    def joint(self) -> bool:
        """Whether a role's turns are credited with what all roles earned."""
        return self.turn_rewards == "joint"


class GrpoOptions(TurnRewardOptions):
    """Reward minus the group mean."""

    type: Literal["grpo"] = "grpo"
    divide_by_std: bool = False
    """Divide by the group's standard deviation (population, +1e-6); zero-variance groups give 0 either way."""
    baseline_over: Literal["episodes", "rows"] = "episodes"
    """Average the group baseline over episodes (each counts once per role) or over rows."""


class RlooOptions(TurnRewardOptions):
    """Reward minus the mean of the other members."""

    type: Literal["rloo"] = "rloo"
    baseline_over: Literal["episodes", "rows"] = "episodes"
    """Average the group baseline over episodes (each counts once per role) or over rows."""


class TwoLevelOptions(AdvantageOptions):
    """What an episode did better than its group, plus what a turn did better than the same turn of the others."""

    type: Literal["two_level"] = "two_level"
    gamma: float = Field(default=0.5, gt=0.0, le=1.0)
    """Discount factor per turn of what later turns earn."""
    step_weight: float = Field(default=1.0, ge=0.0, le=100.0)
    """Weight of the turn's part; with 0 it is the advantage `grpo`."""
    divide_by_std: bool = True
    """Divide each part by its group's standard deviation (population, +1e-6)."""
    leave_one_out: bool = False
    """Compare with the mean of the other episodes alone, not with that of all."""
    least_std: float = Field(default=0.0, ge=0.0, le=1000.0)
    """A group whose episode rewards have no larger standard deviation teaches nothing; UI-S1 takes 0.3."""
    full_reward: float = Field(default=1.0, gt=0.0)
    """A turn that earns less ends the return of the turns before it: what follows a patch is not theirs."""
    counts_last: bool = True
    """That turn's own reward is part of the return, as in the paper; not so in its authors' program."""
    baseline_over: ClassVar[Literal["episodes"]] = "episodes"

    judges_answers: ClassVar[bool] = False
    discounts_always: ClassVar[bool] = True

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Turns are compared in a part of its own, and a return has no other form."""
        yield from super().refusals(spec)
        if self.per_turn:
            yield Problem(
                pointer="/algorithm/advantage/per_turn",
                code="not_with_two_level",
                detail="two_level compares episodes in one part and turns in the other.",
                hint="Set false, or step_weight instead.",
            )
        if spec.algorithm.shaping.of_turns:
            yield Problem(
                pointer="/algorithm/shaping/type",
                code="not_with_two_level",
                detail="two_level takes what turns earned as it came.",
                hint="Set none, or another advantage than two_level.",
            )
        if not spec.environment.facts().rewards_turns:
            yield Problem(
                pointer="/algorithm/advantage/type",
                code="needs_turn_rewards",
                detail=f"two_level compares what turns earn, and {spec.environment.type} scores episodes alone.",
                hint="Set grpo.",
            )


class ReinforceOptions(TurnRewardOptions):
    """The raw reward."""

    type: Literal["reinforce"] = "reinforce"

    needs: ClassVar[Readiness] = Readiness.EPISODE


class ReinforcePpOptions(TurnRewardOptions):
    """The reward normalised over all rows of the policy in the cohort."""

    type: Literal["reinforce_pp"] = "reinforce_pp"

    needs: ClassVar[Readiness] = Readiness.BATCH


class BestWorstOptions(TurnRewardOptions):
    """1 for the best member of a group, -1 for the worst, 0 for the others."""

    type: Literal["best_worst"] = "best_worst"

    judges_answers: ClassVar[bool] = False


class GaeOptions(AdvantageOptions):
    """Generalised advantage estimation with a learned critic, turn by turn."""

    type: Literal["gae"] = "gae"
    gamma: float = Field(default=1.0, gt=0.0, le=1.0)
    """Discount factor per turn of the reward-to-go."""
    gae_lambda: float = Field(default=0.95, ge=0.0, le=1.0)
    """Lambda of GAE: 0 is one-step TD, 1 is the full return."""
    critic_rate: float = Field(default=0.01, gt=0.0, le=1.0)
    """Learning rate of the critic."""

    needs: ClassVar[Readiness] = Readiness.EPISODE
    judges_answers: ClassVar[bool] = False
    discounts_always: ClassVar[bool] = True
    has_critic: ClassVar[bool] = True

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """A critic compares no rows, and adds up what later turns earn itself."""
        yield from super().refusals(spec)
        algorithm = spec.algorithm
        group_key, shaping = algorithm.group_key, algorithm.shaping
        for pointer, value, wanted, broken, why in (
            ("/algorithm/group_key", group_key, "episode_group", group_key != "episode_group", "compares no rows"),
            (
                "/algorithm/shaping/type",
                shaping.type,
                "none",
                shaping.of_turns,
                "computes returns of later turns itself",
            ),
        ):
            if broken:
                yield Problem(
                    pointer=pointer,
                    code="not_with_gae",
                    detail=f"gae {why}, so {value} has no effect.",
                    hint=f"Set {wanted}, or another advantage than gae.",
                )


class HabcOptions(AdvantageOptions):
    """Imitates what solved episodes said, the more a turn brought success nearer. Experimental."""

    type: Literal["habc"] = "habc"
    critic_rate: float = Field(default=0.01, gt=0.0, le=1.0)
    """Learning rate of both heads: how likely success is, and how many turns there are to it."""
    warmup_steps: int = Field(default=20, ge=0, le=1_000_000)
    """Optimizer steps in which all turns of solved episodes count alike, while the heads learn."""
    most_turns: int = Field(default=64, ge=1, le=100_000)
    """Maximum turns to success that a head may expect."""

    needs: ClassVar[Readiness] = Readiness.EPISODE
    judges_answers: ClassVar[bool] = False
    has_critic: ClassVar[bool] = True
    clones: ClassVar[bool] = True

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """What is imitated has no ratio and is compared with nothing; an episode counts by whether it was solved."""
        yield from super().refusals(spec)
        algorithm = spec.algorithm
        for pointer, value, wanted, why in (
            ("/algorithm/loss/type", algorithm.loss.type, "policy_gradient", "weighs log-probabilities themselves"),
            ("/algorithm/correction/type", algorithm.correction.type, "none", "imitates rows of any version alike"),
            ("/algorithm/group_key", algorithm.group_key, "episode_group", "compares no rows"),
            ("/algorithm/shaping/type", algorithm.shaping.type, "none", "reads whether an episode was solved"),
            ("/algorithm/advantage/per_turn", self.per_turn, False, "reads whether an episode was solved"),
            ("/algorithm/advantage/team_share", self.team_share, 1.0, "reads whether an episode was solved"),
        ):
            if value != wanted:
                said, legal = (str(word).lower() if isinstance(word, bool) else word for word in (value, wanted))
                name = pointer.removesuffix("/type").rpartition("/")[2]
                yield Problem(
                    pointer=pointer,
                    code="not_with_habc",
                    detail=f"habc {why}; {name} is {said}.",
                    hint=f"Set {legal}, or another advantage than habc.",
                )


ADVANTAGE: Kind[AdvantageOptions] = Kind(
    "advantage",
    "/algorithm/advantage",
    AdvantageOptions,
    (
        GrpoOptions,
        RlooOptions,
        TwoLevelOptions,
        ReinforceOptions,
        ReinforcePpOptions,
        BestWorstOptions,
        GaeOptions,
        HabcOptions,
    ),
)
