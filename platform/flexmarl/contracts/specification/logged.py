"""Logged conversations of experts as episodes: semi-online training without an environment to act in.

Source: UI-S1, arXiv 2509.11543, whose actions are turns of an assistant here.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from flexmarl.contracts.ids import Name
from flexmarl.contracts.problems import Problem, broken_at
from flexmarl.contracts.specification.dataset import RowTasks
from flexmarl.contracts.specification.environment_base import EnvironmentFacts, RoleFacts, Stages
from flexmarl.contracts.specification.reading import none_of, one_of, read_when
from flexmarl.contracts.specification.scores import ExactOptions, ScoreSpec, distinct

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec

LEARNER: Name = "solver"
"""Who speaks in the place of the logged assistant."""
WRITER: Name = "writer"
"""Who writes the thoughts of patches that are `off_policy`."""
_PATCHED = (none_of("/environment/most_patches", 0),)
_WITH_THOUGHTS = read_when((*_PATCHED, one_of("/environment/patch_writer", "off_policy", "on_policy")))


class LoggedEpisodes(RowTasks):
    """Logged conversations, replayed while a chat model says in each turn what the logged assistant said.

    Score: mean reward of the logged turns, from 0 to 1. For language models with a chat template.
    """

    type: Literal["logged"] = "logged"
    column: str = Field(default="", max_length=200, examples=["conversation"])
    """Column with the logged conversation, a list of messages; empty: the row's messages and its answer."""
    tools_column: str = Field(default="", max_length=200, examples=["tools"])
    """Column with the functions that may be called, a list of JSON schemas; empty: none."""
    most_turns: int = Field(default=8, ge=1, le=64)
    """Turns of the assistant that are played; longer conversations end there."""
    scores: Annotated[tuple[ScoreSpec, ...], AfterValidator(distinct)] = (ExactOptions(),)
    """What words are worth against the logged words; calls of tools are compared by name and arguments."""
    match_at: float = Field(default=1.0, gt=0.0, le=1.0)
    """Weighted mean of the scores from which on words count as what the logged assistant said."""
    format_weight: float = Field(default=0.1, ge=0.0, le=1000.0)
    """Share of a turn's reward for a whole reply that says something."""
    type_weight: float = Field(default=0.4, ge=0.0, le=1000.0)
    """Share for the right kind of turn: the tools that were called, else the words."""
    accuracy_weight: float = Field(default=0.5, gt=0.0, le=1000.0)
    """Share for the right turn: the arguments of calls too, else the words."""
    most_patches: int = Field(default=1, ge=0, le=64)
    """Turns of a training episode that the logged turn replaces where they differ; the next such turn ends it.
    Evaluations patch nothing."""
    patch_writer: Literal["thought_free", "off_policy", "on_policy"] = Field(
        default="thought_free", json_schema_extra=read_when(_PATCHED)
    )
    """What stands before a logged turn that replaces another: nothing, a thought of the agent `writer`, or a thought
    of the policy itself, which is told the logged turn."""
    thought_tokens: int = Field(default=128, ge=1, le=16_384, json_schema_extra=_WITH_THOUGHTS)
    """Maximum tokens of such a thought."""
    reply_tokens: int = Field(default=256, ge=1, le=16_384)
    """Maximum tokens in a reply; `sampling.max_tokens` of an agent may set fewer."""

    @model_validator(mode="after")
    def _judged_by_rules(self) -> Self:
        """Refuse scores that are known only when an episode has ended, or that pay somebody else."""
        for place, score in enumerate(self.scores):
            if score.computed == "asked":
                raise broken_at(("scores", place, "type"), "a turn is judged before the next one; write exact")
            if score.pays != "all":
                raise broken_at(("scores", place, "pays"), "one agent speaks; write all")
        return self

    @property
    def asks_writer(self) -> bool:
        """Whether another agent writes the thoughts of patches."""
        return self.most_patches > 0 and self.patch_writer == "off_policy"

    def facts(self) -> EnvironmentFacts:
        hears = (WRITER,) if self.asks_writer else ()
        roles = [RoleFacts(LEARNER, 1, self.most_turns, hears=hears, opens=True)]
        if self.asks_writer:
            most = min(self.most_patches, self.most_turns - 1)
            roles.append(RoleFacts(WRITER, 0, most, hears=(LEARNER,), graded=False))
        solved = "every turn is what the logged assistant said"
        return EnvironmentFacts(
            "Logged episodes", tuple(roles), None, 1.0, 1.0, solved, rewards_turns=True, stages=self._stages()
        )

    def _stages(self) -> Stages:
        patches = min(self.most_patches, self.most_turns - 1) if self.asks_writer else 0
        patched = (((LEARNER,), (WRITER,)) * patches) if patches else ()
        return (*patched, *((LEARNER,) for _ in range(self.most_turns - patches)))

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse a writer that learns, groups that branch, and what the scores refuse."""
        for score in self.scores:
            yield from score.refusals(spec)
        yield from super().refusals(spec)
        writer = spec.agents.get(WRITER)
        if self.asks_writer and writer is not None and writer.trainable:
            detail = f"{WRITER} is told the logged turn; trained on that, it would learn to say what it was told."
            hint = "Set false."
            yield Problem(pointer=f"/agents/{WRITER}/trainable", code="writer_is_frozen", detail=detail, hint=hint)
        if spec.sampling.copies:
            yield Problem(
                pointer="/sampling/branch_controller/type",
                code="not_with_logged",
                detail="Answers of one turn that branch would go on in one conversation, patched or not.",
                hint="Set none.",
            )
