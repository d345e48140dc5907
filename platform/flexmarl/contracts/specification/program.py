"""Agent programs that train unmodified: an episode is a session whose calls come from outside, over HTTP."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from flexmarl.contracts.ids import Name
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.environment_base import EnvironmentFacts, EnvironmentOptions, RoleFacts

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class ProgramEnvironment(EnvironmentOptions):
    """A program of yours that asks the run's agents over HTTP, in the dialect of OpenAI, and reports its reward.

    Score: what the program reports. For language models with a chat template.
    """

    converses: ClassVar[bool] = True
    lists_held_out: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    type: Literal["program"] = "program"
    seats: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)] = ("agent",)
    """Agents that the program may ask; `model` of a call is one of them."""
    tasks: int = Field(default=1000, ge=1, le=10_000_000)
    """Training tasks. A session is told the number of its task, from 0; what that means is the program's business."""
    held_out: int = Field(default=20, ge=1, le=100_000)
    """Tasks kept for evaluation; their numbers follow those of training."""
    boot_timeout_s: float = Field(default=600.0, gt=0.0, le=86_400.0)
    """Maximum time an open session waits for a program to take it."""
    run_timeout_s: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Maximum time that a program spends between calls in a session, all of it together, the report of its reward
    included; the time in which agents answer counts for `batch.episode_timeout_s` alone."""
    max_calls: int = Field(default=64, ge=1, le=1000)
    """Calls of each agent in a session; further ones are refused."""
    reply_tokens: int = Field(default=256, ge=1, le=16_384)
    """Maximum tokens in a reply; a call, or `sampling.max_tokens` of an agent, may set fewer."""
    best_reward: float = Field(default=1.0, gt=0.0, le=1e9)
    """Highest reward of a session; a session that reaches it counts as solved. The lowest is 0."""

    @model_validator(mode="after")
    def _seats_differ(self) -> "ProgramEnvironment":
        if len(set(self.seats)) < len(self.seats):
            raise ValueError(f"seats names one twice; {list(dict.fromkeys(self.seats))} fits")
        return self

    def rewards_of(self, report: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
        """Return what a report gives the team, and each seat; the report has a reward, or one of every seat."""
        own: dict[str, float] = report.get("rewards", {})
        team = report["reward"] if "reward" in report else sum(own.values()) / len(own)
        return team, {seat: own.get(seat, team) for seat in self.seats}

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
        if self.run_timeout_s > spec.batch.episode_timeout_s:
            yield Problem(
                pointer="/environment/run_timeout_s",
                code="out_of_range",
                detail="run_timeout_s is part of batch.episode_timeout_s, "
                f"which is {spec.batch.episode_timeout_s:g}; it is {self.run_timeout_s:g}.",
                hint=f"Set {spec.batch.episode_timeout_s:g}, or a longer batch.episode_timeout_s.",
            )
