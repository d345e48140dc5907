"""Rows of an imported dataset as tasks: which version, how replies are scored, who answers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.problems import Problem, broken_at
from flexmarl.contracts.row_order import row_of
from flexmarl.contracts.specification.environment_base import EnvironmentFacts, EnvironmentOptions, RoleFacts
from flexmarl.contracts.specification.graphs import ALONE, GraphSpec, team_facts
from flexmarl.contracts.specification.scores import ExactOptions, JudgeOptions, ScoreSpec, distinct
from flexmarl.contracts.specification.tools import NO_TOOLS, ToolUse

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class NamedDataset(Strict):
    """A version of a dataset that was imported into this installation; hosts read its rows by their digest."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "school_maths"}]})

    name: Name = Field(default="example", examples=["school_maths"])
    """Name of the dataset."""
    version: int | None = Field(default=None, ge=1, lt=2**31, examples=[2])
    """Version of the dataset; the newest when absent. Set when the run is created."""
    project: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9_-]*$")
    """Project of the dataset; the run's own when absent."""
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Of its rows. Set when the run is created; what is written here is replaced."""
    training: int = Field(default=0, ge=0)
    """Rows to train on. Set when the run is created; what is written here is replaced."""
    held_out: int = Field(default=0, ge=0)
    """Rows kept for evaluation. Set when the run is created; what is written here is replaced."""


class RowTasks(EnvironmentOptions):
    """An environment whose tasks are rows of an imported dataset."""

    converses: ClassVar[bool] = True
    lists_held_out: ClassVar[bool] = True
    lists_training: ClassVar[bool] = True
    tells_task: ClassVar[bool] = True

    dataset: NamedDataset = NamedDataset()
    """Which rows."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the order of rows, which is another one in each epoch."""

    @property
    def training_tasks(self) -> int:
        """Return how many there are: the rows to train on; 0 before they are known."""
        return self.dataset.training

    def task_of(self, task_seed: int) -> int | None:
        """Return the row of a task seed, which is the number of its draw; None before the rows are known."""
        return row_of(task_seed, self.training_tasks, self.seed) if self.training_tasks else None

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse an evaluation of more rows than are held out, once they are known."""
        held_out, wanted = self.dataset.held_out, spec.evaluation.tasks
        if self.dataset.digest and held_out < wanted:
            hint = f"Set {held_out}." if held_out else "Import it with a share of held-out rows."
            detail = f"{self.dataset.name} {self.dataset.version} holds out {held_out} rows, {wanted} are evaluated."
            yield Problem(pointer="/evaluation/tasks", code="too_few_rows", detail=detail, hint=hint)


class DatasetTasks(RowTasks):
    """Rows of an imported dataset, answered by one agent or a team; scored by rules that you choose.

    Score: weighted mean of the scores of the team's answer, from 0 to 1. For language models with a chat template.
    """

    tells_answer: ClassVar[bool] = True

    type: Literal["dataset"] = "dataset"
    scores: Annotated[tuple[ScoreSpec, ...], AfterValidator(distinct)] = (ExactOptions(),)
    """What an answer is worth: each from 0 to 1; a weighted mean for each seat, and one for the team."""
    answer: Literal["whole", "last_line", "number", "tag", "boxed"] = "whole"
    """What of a reply is its answer where a team or a group votes: all of it, its last line, its last number, or what
    stands between <answer> and </answer> or in \\boxed{}."""
    graph: GraphSpec = ALONE
    """Who speaks when in the team, and who reads what; as it comes, one solver answers."""
    reply_tokens: int = Field(default=256, ge=1, le=16_384)
    """Maximum tokens in a reply; `sampling.max_tokens` of an agent may set fewer."""
    tools: ToolUse = NO_TOOLS
    """What the seats may call before they answer."""

    @model_validator(mode="after")
    def _everybody_has_a_score(self) -> Self:
        """Refuse scores of seats that are not there, a team without any, and judges that have a seat."""
        seats = [seat.name for seat in self.graph.seats()]
        for place, score in enumerate(self.scores):
            unknown = [] if isinstance(score.pays, str) else [name for name in score.pays if name not in seats]
            if unknown or score.pays == ():
                rule = f"no seat is named {unknown[0]}" if unknown else "it pays nobody"
                raise broken_at(("scores", place, "pays"), f"{rule}; write all, team, seats or some of {seats}")
            if isinstance(score, JudgeOptions) and score.agent in seats:
                rule = f"{score.agent} has a seat in the team and cannot grade it; name another agent, such as grader"
                raise broken_at(("scores", place, "agent"), rule)
        if not any(score.counts_for(None) for score in self.scores):
            raise broken_at(("scores",), "no score pays the team; write pays: all at one of them")
        return self

    def judges(self) -> tuple[JudgeOptions, ...]:
        """Return the scores that an agent of the run gives."""
        return tuple(score for score in self.scores if isinstance(score, JudgeOptions))

    def longest_reply(self, role: str) -> int | None:
        verdicts = [judge.verdict_tokens for judge in self.judges() if judge.agent == role]
        return max(verdicts, default=None) or super().longest_reply(role)

    def facts(self) -> EnvironmentFacts:
        facts = self._with_tools(
            team_facts("Dataset", self.graph, self.reply_tokens, "every score of the team's answer is 1")
        )
        agents = tuple(dict.fromkeys(judge.agent for judge in self.judges()))
        if not agents:
            return facts
        answers, seats = sum(map(len, facts.stages)), tuple(role.name for role in facts.roles)
        most = {name: sum(answers * one.tries for one in self.judges() if one.agent == name) for name in agents}
        roles = tuple(RoleFacts(name, 0, most[name], hears=seats, graded=False) for name in agents)
        return replace(facts, roles=(*facts.roles, *roles), stages=(*facts.stages, agents))

    def _with_tools(self, facts: EnvironmentFacts) -> EnvironmentFacts:
        """Return facts with the turns in which seats call tools."""
        if not self.tools.servers:
            return facts
        most = self.tools.turns + 1
        roles = tuple(
            replace(role, max_turns=most * role.max_turns) if self.tools.has_any(role.name) else role
            for role in facts.roles
        )
        return replace(facts, roles=roles)

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse an evaluation of more rows than are held out, once they are known, and what the scores refuse."""
        for score in self.scores:
            yield from score.refusals(spec)
        yield from self.tools.problems([seat.name for seat in self.graph.seats()], spec)
        yield from super().refusals(spec)
