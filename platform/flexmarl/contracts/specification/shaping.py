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
    counts_answers: ClassVar[bool] = False
    """Whether it compares what members answered, which outcomes tell only then."""

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


class MajorityVoteOptions(ShapingOptions):
    """Pays the answer that most members of a group give, in place of every score, as in ECHO. Experimental."""

    type: Literal["majority_vote"] = "majority_vote"
    least_share: float = Field(default=0.3, ge=0.0, le=1.0)
    """Least share of a group's members that must agree; a group that agrees less is not trained on."""

    needs: ClassVar[Readiness] = Readiness.GROUP
    counts_answers: ClassVar[bool] = True
    bias: ClassVar[str] = "The gradient is that of agreement, not of the score: where most are wrong, they are paid."

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """A vote needs answers to compare, and takes the place of the scores that others would choose by."""
        yield from super().refusals(spec)
        if not spec.environment.tells_answer:
            yield Problem(
                pointer="/environment/type",
                code="needs_answers",
                detail=f"majority_vote counts equal answers, and {spec.environment.type} has none to compare.",
                hint="Set sums, dataset or reasoning_gym, or shaping: none in /algorithm.",
            )
        for pointer, value, legal, why in _beside_a_vote(spec):
            if value != legal:
                said, word = (str(one).lower() if isinstance(one, bool) else one for one in (value, legal))
                yield Problem(
                    pointer=pointer,
                    code="not_with_majority_vote",
                    detail=f"{why}; {pointer.removesuffix('/type').rpartition('/')[2]} is {said}.",
                    hint=f"{'Remove it' if word is None else f'Set {word}'}, or shaping: none in /algorithm.",
                )


def _beside_a_vote(spec: "ExperimentSpec") -> Iterator[tuple[str, object, object, str]]:
    """Return the pointer of each setting beside a vote, its value, the legal one, and why no other is."""
    advantage, sampling = spec.algorithm.advantage, spec.sampling
    scores = "majority_vote takes the place of scores, and by these"
    yield "/algorithm/advantage/team_share", advantage.team_share, 1.0, "Every role is paid by the one vote"
    yield "/algorithm/advantage/per_turn", advantage.per_turn, False, "A vote is on the answer of a whole episode"
    if advantage.has_critic:
        why = "A critic learns what turns earn, and a vote is on the answer of a whole episode"
        yield "/algorithm/advantage/type", advantage.type, "grpo", why
    yield "/sampling/group_filter/type", sampling.group_filter.type, "none", f"{scores} groups would be refused"
    yield "/sampling/keep_members", sampling.keep_members, None, f"{scores} members would be chosen"
    if sampling.task_sampler.chooses:
        yield "/sampling/task_sampler/type", sampling.task_sampler.type, "uniform", f"{scores} tasks would be chosen"
    if sampling.branches:
        why = "The members of a group that branches share one episode, and give one answer"
        yield "/sampling/branch_controller/type", sampling.branch_controller.type, "none", why
    if sampling.sharing.on and sampling.sharing.foreign:
        yield "/sampling/sharing/foreign", sampling.sharing.foreign, 0, "Others would have votes"
    incomplete = spec.batch.incomplete_group
    yield "/batch/incomplete_group", incomplete, "drop_group", "A member that failed has no score to be given"


SHAPING: Kind[ShapingOptions] = Kind(
    "shaping",
    "/algorithm/shaping",
    ShapingOptions,
    (NoShapingOptions, OverlongOptions, MartiOptions, MaporlOptions, MajorityVoteOptions),
)
