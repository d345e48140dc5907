"""Branch controllers: how the members of a group branch. Code: `flexmarl.algorithms.branching`."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from flexmarl.contracts.plugins import Kind, PluginOptions
from flexmarl.contracts.problems import Problem, broken_at
from flexmarl.contracts.specification.advantages import ADVANTAGE, GrpoOptions
from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.specification.redundancies import Beyond

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec

MOST_JOINTS = 4096
"""Joint answers of one turn at most: each is tried on a copy of the episode."""


class BranchControllerOptions(PluginOptions):
    """How the members of a group branch."""

    branches: ClassVar[bool] = True
    """Whether all members answer the turns of one episode."""
    continues: ClassVar[bool] = False
    """Whether some members continue the episodes of others."""

    @property
    def plays_out(self) -> bool:
        """Whether answers are scored by playing the episode on from them, and not by what their turn brought."""
        return False

    def continuations(self, members: int) -> int:
        """Return how many of a group's members continue others: its last ones."""
        return 0


class NoBranchesOptions(BranchControllerOptions):
    """Each member plays an episode of its own."""

    type: Literal["none"] = "none"

    branches: ClassVar[bool] = False


class CopyingOptions(BranchControllerOptions):
    """Members go on from copies of an episode."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse environments of which no copies can be made."""
        environment = spec.environment
        if isinstance(environment, DatasetTasks) and environment.tools.servers:
            yield Problem(
                pointer="/environment/tools/servers",
                code="not_copyable",
                detail="A session with a server of tools cannot be copied, so no episode can go on in several ways.",
                hint="Set [], or branch_controller: none in /sampling.",
            )
        if environment.isolated:
            others = [name for name, options in ENVIRONMENT.variants().items() if not options.isolated]
            yield Problem(
                pointer="/environment/type",
                code="not_copyable",
                detail=f"{environment.type} runs in processes whose state cannot be copied, so no episode can go on in "
                "several ways.",
                hint=f"Set branch_controller: none, or an environment that can be copied: {', '.join(others)}.",
            )

    def _demanded(self, demands: "Iterable[_Demand]") -> Iterator[Problem]:
        for pointer, value, legal, why in demands:
            if value not in legal:
                yield Problem(
                    pointer=pointer,
                    code="not_with_branches",
                    detail=f"{self.type} {why}; {pointer.rpartition('/')[2]} is {str(value).lower()}.",
                    hint=f"Set {_words(legal)}, or branch_controller: none in /sampling.",
                )


class BranchingOptions(CopyingOptions):
    """All members answer every turn of one episode from the same state, and one answer continues it."""

    score: Literal["turn", "played_out"] = "turn"
    """Reward of an answer: the environment's reward for the turn (`turn`), or the episode's score when the same agents
    play on from there (`played_out`)."""

    @property
    def plays_out(self) -> bool:
        """Whether answers are scored by playing the episode on from them."""
        return self.score == "played_out"

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse environments without copies, and whatever speaks of a member's own episode."""
        yield from super().refusals(spec)
        environment = spec.environment
        if not environment.isolated and self.score == "turn" and not environment.facts().rewards_turns:
            yield Problem(
                pointer="/sampling/branch_controller/score",
                code="needs_turn_rewards",
                detail=f"{environment.type} rewards episodes, not turns.",
                hint="Set played_out, or an environment that rewards turns: arithmetic, kitchen.",
            )
        yield from self._demanded((*_of_learning(spec), *_of_playing(spec)))


class AtGrpoTreeOptions(BranchingOptions):
    """All members answer every turn of one episode, as in AT-GRPO; experimental."""

    type: Literal["at_grpo_tree"] = "at_grpo_tree"
    carry: Literal["best", "first"] = "best"
    """Answer that continues the episode: the best one, or the first member's, a plain sample of the policy."""
    joint: Literal["aligned", "cross"] = "aligned"
    """When several roles answer at once: combine answers member by member (`aligned`), or each answer with all answers
    of the others, credited with the mean (`cross`, as in MAGRPO)."""

    bias: ClassVar[str] = "With carry: best, states are better than the policy's own; with first they are its own."

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse answers that have none beside them to be crossed with, and too many that have."""
        yield from super().refusals(spec)
        if self.joint != "cross":
            return
        # An environment that opens with several roles asks them at once throughout.
        together = sum(role.opens for role in spec.environment.facts().roles)
        members = spec.batch.episodes_per_task
        if together < 2:
            yield Problem(
                pointer="/sampling/branch_controller/joint",
                code="nothing_to_cross",
                detail=f"{spec.environment.type} queries one role at a time, so there are no joint answers.",
                hint="Set aligned.",
            )
        elif members**together > MOST_JOINTS:
            most = next(n for n in range(members, 0, -1) if n**together <= MOST_JOINTS)
            yield Problem(
                pointer="/batch/episodes_per_task",
                code="out_of_range",
                detail=f"cross combines every answer of {together} roles: {members} members give {members**together} "
                f"joint answers per turn; at most {MOST_JOINTS} are allowed.",
                hint=f"Set {most}, or joint: aligned in /sampling/branch_controller.",
            )


class TreeOptions(CopyingOptions):
    """Some members go on from episodes of others, once these have ended."""

    branches: ClassVar[bool] = False
    continues: ClassVar[bool] = True
    compares: ClassVar[str] = "compares whole episodes, some of which share what they begin with"

    share: float = Field(default=0.5, ge=0.0, le=0.9)
    """Share of a group's members that continue others; two at least play episodes of their own. 0: nobody continues."""

    def continuations(self, members: int) -> int:
        """Return how many of a group's members continue others: its last ones."""
        return max(0, min(int(members * self.share + 1e-9), members - 2))

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse whatever takes a member for a whole episode, or groups for less than whole."""
        yield from super().refusals(spec)
        members = spec.batch.episodes_per_task
        if self.share and not self.continuations(members):
            yield Problem(
                pointer="/batch/episodes_per_task",
                code="out_of_range",
                detail=f"Two of {members} members at least play episodes of their own, and with share {self.share:g} "
                "nobody is left to continue them.",
                hint="Set 4 or more with share: 0.5, or branch_controller: none in /sampling.",
            )
        yield from self._demanded((*_of_trees(spec, self.compares), *_of_waves(spec)))


class ContinuingOptions(TreeOptions):
    """Some members continue the episodes of others, after a turn that is chosen once these have ended."""

    compares: ClassVar[str] = "compares turns by what the episodes through them came to"

    most_per_prefix: int = Field(default=2, ge=1, le=64)
    """Most members that go on after the same turn of the same episode."""
    predictor: Literal["fitted", "none"] = "fitted"
    """Where outcomes are expected to change: by a model that is fitted after every step (`fitted`), or nowhere more
    than elsewhere, so that continuations are spread evenly by chance (`none`)."""
    lone_turns: Literal["root", "nearest"] = "root"
    """What a turn is compared with in whose place nobody else said anything: the first turns of the group's own
    episodes (`root`), or what the nearest turn before it is compared with (`nearest`)."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse episodes that have nothing to go on after."""
        yield from super().refusals(spec)
        environment = spec.environment
        if not environment.isolated and sum(role.max_turns for role in environment.facts().roles) < 2:
            yield Problem(
                pointer="/sampling/branch_controller/type",
                code="nothing_to_continue",
                detail=f"Episodes of {environment.type} have one turn, after which nothing is left to play.",
                hint="Set none, or an environment of several turns.",
            )


class TraceOptions(ContinuingOptions):
    """Members continue others where an outcome most likely changes, as in the second stage of TRACE. Experimental."""

    type: Literal["trace"] = "trace"

    bias: ClassVar[str] = (
        "Values of shared turns are means over the episodes through them, and which these are follows from outcomes."
    )


class EchoOptions(TreeOptions):
    """Members continue replies of others from the first token in doubt, as the branches of ECHO do. Experimental."""

    type: Literal["echo"] = "echo"
    most_width: int = Field(default=4, ge=1, le=64)
    """Most members that go on from the same token."""
    high_quantile: float = Field(default=0.8, gt=0.0, lt=1.0)
    """A token is in doubt from this quantile of the entropies of the run's last tokens on."""
    low_quantile: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Quantile of a token in no doubt: the more entropy above it, the more members go on."""
    confidence_quantile: float = Field(default=0.5, gt=0.0, le=1.0)
    """A token is in doubt up to this quantile of their confidences."""
    jump_quantile: float = Field(default=0.8, ge=0.0, lt=1.0)
    """A token is in doubt from this quantile of their jumps of entropy on."""
    likeliest: Literal[1, 5] = 5
    """Confidence is the mass of so many tokens: those that were likeliest."""

    bias: ClassVar[str] = (
        "Continuations share what their root said before the token, so the members of a group are not independent."
    )

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low_quantile >= self.high_quantile:
            raise broken_at(("low_quantile",), f"must be below high_quantile, which is {self.high_quantile:g}")
        return self

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse engines that do not tell how uncertain tokens are, and replies that begin anew."""
        yield from super().refusals(spec)
        yield from self._demanded(_of_tokens(spec))


_Demand = tuple[str, object, tuple[object, ...], str]
"""Pointer, value, legal values, and why."""


def _of_learning(spec: "ExperimentSpec") -> Iterator[_Demand]:
    algorithm = spec.algorithm
    advantage, shaping = algorithm.advantage, algorithm.shaping
    judging = tuple(name for name, options in ADVANTAGE.variants().items() if options.judges_answers)
    yield "/algorithm/group_key", algorithm.group_key, ("agent_turn",), "compares answers to the same turn"
    yield "/algorithm/advantage/type", advantage.type, judging, "compares answers to the same turn"
    yield "/algorithm/advantage/per_turn", advantage.per_turn, (False,), "scores each answer by itself"
    if shaping.of_turns:
        why = "plays one history, which most answers of a member are not part of"
        yield "/algorithm/shaping/type", shaping.type, ("none", "overlong"), why
    keep = spec.sampling.keep_members
    yield "/sampling/keep_members", keep, (None,), "plays one episode, which gives all members their scores"


def _of_playing(spec: "ExperimentSpec") -> Iterator[_Demand]:
    batch, parallel = spec.batch, spec.mechanisms.parallel
    yield "/batch/settle", batch.settle, ("group",), "ends all members at once"
    yield "/batch/min_members", batch.min_members, (None,), "finishes all members or none"
    yield from _of_redundancy(spec)
    yield "/mechanisms/parallel/members", parallel.members, (None,), "queries all members at once"
    yield "/mechanisms/parallel/turns", parallel.turns, ("own",), "queries all members at once"
    yield "/reward/type", spec.reward.type, ("environment",), "needs rewards while the episode plays"


def _of_redundancy(spec: "ExperimentSpec") -> Iterator[_Demand]:
    redundancy, why = spec.mechanisms.redundancy, "needs all its members"
    if redundancy.beyond - {Beyond.GROUPS}:
        members = getattr(redundancy, "extra_members", None)
        if members is None:
            yield "/mechanisms/redundancy/type", redundancy.type, ("none", "extra_groups"), why
        else:
            yield "/mechanisms/redundancy/extra_members", members, (0,), why


def _of_trees(spec: "ExperimentSpec", why: str) -> Iterator[_Demand]:
    algorithm, sampling = spec.algorithm, spec.sampling
    advantage = algorithm.advantage
    yield "/algorithm/advantage/type", advantage.type, ("grpo",), why
    yield "/algorithm/advantage/per_turn", advantage.per_turn, (False,), why
    if isinstance(advantage, GrpoOptions):
        yield "/algorithm/advantage/baseline_over", advantage.baseline_over, ("episodes",), why
    yield "/algorithm/group_key", algorithm.group_key, ("episode_group",), why
    yield "/algorithm/shaping/type", algorithm.shaping.type, ("none",), why
    yield "/sampling/keep_members", sampling.keep_members, (None,), "needs the whole tree"
    yield "/sampling/replay/type", sampling.replay.type, ("none", "archive"), "needs the whole tree"


def _of_waves(spec: "ExperimentSpec") -> Iterator[_Demand]:
    batch, mechanisms = spec.batch, spec.mechanisms
    why = "continues episodes once all of a group's first ones have ended"
    yield "/batch/settle", batch.settle, ("group",), why
    yield "/batch/min_members", batch.min_members, (None,), "needs the whole tree"
    yield "/batch/incomplete_group", batch.incomplete_group, ("drop_group",), "needs the whole tree"
    yield from _of_redundancy(spec)
    yield "/mechanisms/parallel/turns", mechanisms.parallel.turns, ("own",), why
    yield "/reward/type", spec.reward.type, ("environment",), "needs outcomes as soon as episodes end"
    if mechanisms.ordered:
        fits = "is fitted to the groups of the step before, which an ordered run must know"
        yield "/mechanisms/publication/type", mechanisms.publication.type, ("cohort", "wavefront"), fits


def _of_tokens(spec: "ExperimentSpec") -> Iterator[_Demand]:
    why = "needs the entropy of every token, and vLLM reports the likeliest ones alone"
    yield "/resources/engine", spec.resources.engine, ("torch",), why
    begins = "begins replies with what others said"
    yield "/mechanisms/ordered", spec.mechanisms.ordered, (False,), begins
    for name in spec.trainable_policies():
        in_flight = spec.lag_policy_of(name).in_flight
        if in_flight == "restart_turn":
            yield f"{spec.lag_policy_pointer(name)}/in_flight", in_flight, ("finish", "continue", "resume"), begins


def _words(legal: tuple[object, ...]) -> str:
    return "nothing" if legal == (None,) else " or ".join(str(word).lower() for word in legal)


BRANCH_CONTROLLER: Kind[BranchControllerOptions] = Kind(
    "branch_controller",
    "/sampling/branch_controller",
    BranchControllerOptions,
    (NoBranchesOptions, AtGrpoTreeOptions, TraceOptions, EchoOptions),
    CopyingOptions,
)
