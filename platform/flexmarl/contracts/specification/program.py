"""Agent programs that train unmodified: an episode is a session whose calls come from outside, over HTTP."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.commands import CommandRunner
from flexmarl.contracts.specification.dataset import NamedDataset
from flexmarl.contracts.specification.environment_base import EnvironmentFacts, EnvironmentOptions, RoleFacts
from flexmarl.contracts.specification.package import NAMED, PinnedProgram

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


@dataclass(frozen=True, slots=True)
class ReportFault:
    """What is wrong with the report of a program."""

    member: str
    rule: str
    code: str = "out_of_range"

    def __str__(self) -> str:
        return f"{self.member}: {self.rule}"


class RemoteRunner(Strict):
    """You start the program, wherever you like: it takes sessions over REST, one after the other."""

    type: Literal["remote"] = "remote"


class ProcessRunner(Strict):
    """Rollout workers start the program, a process for each session: a function of a package, without credentials."""

    type: Literal["process"] = "process"
    package: str = Field(default="example@1.0.0", pattern=NAMED, examples=["two-seats@1.0"])
    """NAME@VERSION of a package of the run's project, or the id of one that the submitter may read."""
    program: str = Field(default="", max_length=100, examples=["sums"])
    """Name of the program; may be absent where the package has one."""
    options: Annotated[dict[str, JsonValue], Field(max_length=64)] = {}
    """Options of the program, as the package's manifest describes them."""
    memory_mb: int = Field(default=2048, ge=64, le=65_536)
    """Address space of each of its processes in MiB; a session that needs more fails."""
    score_timeout_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """Timeout for the reward of a program that has ended."""
    close_timeout_s: float = Field(default=5.0, gt=0.0, le=600.0)
    """Timeout for ending its processes and removing its folder; then they are killed. The session counts
    nevertheless."""
    pinned: PinnedProgram = PinnedProgram()
    """Build that the control plane writes down when the run is made; not set by hand."""


StartedRunner = ProcessRunner | CommandRunner
"""What rollout workers start: nobody else takes the sessions of such a run."""
Runner = Annotated[RemoteRunner | ProcessRunner | CommandRunner, Field(discriminator="type")]


class ProgramEnvironment(EnvironmentOptions):
    """A program of yours that asks the run's agents over HTTP, in the dialect of OpenAI, and reports its reward.

    Score: what the program reports. For language models with a chat template.
    """

    converses: ClassVar[bool] = True
    lists_held_out: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    type: Literal["program"] = "program"
    runner: Runner = RemoteRunner()
    """Who starts the program: you do, or rollout workers start a function of a package, or a command."""
    dataset: NamedDataset | None = None
    """Rows of an imported dataset that are the tasks, where `runner` is a command; `tasks` and `held_out` are then at
    most as many as it has, and all where they are left out."""
    seats: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)] = ("agent",)
    """Agents that the program may ask; `model` of a call is one of them."""
    tasks: int = Field(default=1000, ge=1, le=10_000_000)
    """Training tasks. A session is told the number of its task, from 0; what that means is the program's business."""
    held_out: int = Field(default=20, ge=1, le=100_000)
    """Tasks kept for evaluation; their numbers follow those of training."""
    boot_timeout_s: float = Field(default=600.0, gt=0.0, le=86_400.0)
    """Maximum time until a program has the session: one of yours takes it, or one of a package begins to run."""
    run_timeout_s: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Maximum time that a program spends between calls in a session, all of it together, the report of its reward
    included; the time in which agents answer counts for `batch.episode_timeout_s` alone."""
    reward_timeout_s: float = Field(default=0.0, ge=0.0, le=604_800.0)
    """Maximum time from the end of a program until its reward arrives, where its report says `reward_later`; part of
    neither `run_timeout_s` nor `batch.episode_timeout_s`. With 0 every report brings the reward."""
    max_calls: int = Field(default=64, ge=1, le=1000)
    """Calls of each agent in a session; further ones are refused."""
    reply_tokens: int = Field(default=256, ge=1, le=16_384)
    """Maximum tokens in a reply; a call, or `sampling.max_tokens` of an agent, may set fewer."""
    formats: Literal["refused", "learned", "held"] = "refused"
    """What becomes of a format that a call to a trained agent names, such as `response_format`: the call is refused; or
    the format is left out, and the agent learns it by what its replies earn; or replies are held to it, and trained as
    drawn from what it allows. Agents that are not trained are held to it."""
    rows: Literal["conversation", "call"] = "conversation"
    """What becomes a training row: a whole conversation, each call of which reads the very ids of those before, or each
    call by itself, whose messages the chat template writes anew. Rows of calls repeat what was said before."""
    best_reward: float = Field(default=1.0, gt=0.0, le=1e9)
    """Highest reward of a session; a session that reaches it counts as solved. The lowest is 0."""

    @model_validator(mode="after")
    def _seats_differ(self) -> "ProgramEnvironment":
        if len(set(self.seats)) < len(self.seats):
            raise ValueError(f"seats names one twice; {list(dict.fromkeys(self.seats))} fits")
        return self

    @property
    def training_tasks(self) -> int:
        """Return how many there are: the numbers that sessions are told."""
        return self.tasks

    def task_of(self, task_seed: int) -> int | None:
        """Return the number that the session of a task seed is told."""
        return task_seed % self.tasks

    def rewards_of(self, report: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
        """Return what a report gives the team, and each seat; the report has a reward, or one of every seat."""
        own: dict[str, float] = report.get("rewards", {})
        team = report["reward"] if "reward" in report else sum(own.values()) / len(own)
        return team, {seat: own.get(seat, team) for seat in self.seats}

    def fault_of(self, report: Mapping[str, Any]) -> ReportFault | None:
        """Return what is wrong with a report that says what was earned; None: nothing."""
        if unknown := sorted(set(report) - {"reward", "rewards"}):
            return ReportFault(unknown[0], "it is not known; known are reward and rewards", "unknown_field")
        own = report.get("rewards", {})
        if not isinstance(own, Mapping):
            return ReportFault("rewards", "send an object with a number for each seat", "invalid")
        if unknown := sorted(set(own) - set(self.seats)):
            return ReportFault(f"rewards/{unknown[0]}", f"there is no such seat; seats are {', '.join(self.seats)}")
        if "reward" not in report and (missing := [seat for seat in self.seats if seat not in own]):
            return ReportFault(f"rewards/{missing[0]}", "send it, or reward for all seats without one", "required")
        rewards = {f"rewards/{seat}": value for seat, value in own.items()}
        for name, value in {**rewards, **({"reward": report["reward"]} if "reward" in report else {})}.items():
            finite = isinstance(value, int | float) and math.isfinite(value)
            if not finite or not 0 <= value <= self.best_reward:
                rule = f"send a number from 0 to {self.best_reward:g} (environment.best_reward)"
                return ReportFault(name, rule)
        return None

    def facts(self) -> EnvironmentFacts:
        roles = tuple(
            RoleFacts(name, 0, self.max_calls, tuple(one for one in self.seats if one != name), opens=True)
            for name in self.seats
        )
        best = self.best_reward
        return EnvironmentFacts("Program", roles, None, best, best, "the program reports the best reward")

    def refusals(self, spec: "ExperimentSpec") -> "Iterator[Problem]":
        """Refuse what needs the same bits again, turns of several sessions at once, and a deadline inside another."""
        if spec.mechanisms.ordered:
            yield Problem(
                pointer="/mechanisms/ordered",
                code="not_with_program",
                detail="Ordered runs must be bitwise reproducible; a program outside of the run is not.",
                hint="Set false.",
            )
        if spec.mechanisms.parallel.turns == "together":
            yield Problem(
                pointer="/mechanisms/parallel/turns",
                code="not_with_program",
                detail="Programs ask when they like; their sessions cannot wait for each other before every turn.",
                hint="Set own.",
            )
        if self.reward_timeout_s and isinstance(self.runner, StartedRunner):
            yield Problem(
                pointer="/environment/reward_timeout_s",
                code=f"not_with_{self.runner.type}",
                detail=f"Rollout workers that start programs (environment.runner.type {self.runner.type}) read the "
                "reward when one has ended; nobody else may report on it.",
                hint="Set 0, or environment.runner.type remote.",
            )
        if isinstance(self.runner, CommandRunner):
            yield from self.runner.refusals(self)
        yield from self._row_refusals()
        if self.run_timeout_s > spec.batch.episode_timeout_s:
            yield Problem(
                pointer="/environment/run_timeout_s",
                code="out_of_range",
                detail="run_timeout_s is part of batch.episode_timeout_s, "
                f"which is {spec.batch.episode_timeout_s:g}; it is {self.run_timeout_s:g}.",
                hint=f"Set {spec.batch.episode_timeout_s:g}, or a longer batch.episode_timeout_s.",
            )

    def _row_refusals(self) -> "Iterator[Problem]":
        """Refuse rows that no command is given, and more tasks than there are rows."""
        if self.dataset is None:
            return
        if not isinstance(self.runner, CommandRunner):
            yield Problem(
                pointer="/environment/dataset",
                code=f"not_with_{self.runner.type}",
                detail="Rows are given to commands alone; other programs are told the number of their task.",
                hint="Set null, or environment.runner.type command.",
            )
        if not self.dataset.digest:
            return
        name = f"{self.dataset.name} {self.dataset.version}"
        for word, there in (("tasks", self.dataset.training), ("held_out", self.dataset.held_out)):
            if (wanted := getattr(self, word)) > there:
                hint = f"Set at most {there}." if there else "Import it with rows of both sides."
                detail = f"{name} has {there} rows for it, {word} is {wanted}."
                yield Problem(pointer=f"/environment/{word}", code="too_few_rows", detail=detail, hint=hint)
