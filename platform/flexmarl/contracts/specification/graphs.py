"""Graphs: who speaks when in a team that answers a question in messages, who reads what, and whom a score pays.

A graph's roles are its seats. Their order is that in which people read them. What a graph does with what was said is in
`workers.rollout.environments.graphs`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.plugins import Kind, OneOf, PluginOptions
from flexmarl.contracts.specification.environment_base import EnvironmentFacts, RoleFacts, Stages

MOST_SEATS = 16
Sees = Literal["all", "last", "own"] | tuple[Name, ...]


class SeatOptions(Strict):
    """A seat of a graph."""

    name: Name
    """Role of the seat, which an agent of this name takes."""
    sees: Sees = "all"
    """What a seat reads of the others since its last turn: `all`; `last`, what was said right before; `own`, nothing,
    only its own turns; or the names of those that it reads."""
    reward: Literal["own", "team"] = "own"
    """What pays a seat: its own answers or verdicts, where it gives any, or the team's answer."""


class WorkerSeat(SeatOptions):
    """A seat that a hub asks."""

    sees: Sees = "own"
    """What it reads of the others since its last turn, beside its question: `own`, nothing; `all`; `last`, what was
    said right before; or the names of those that it reads."""


class SequenceSeat(SeatOptions):
    """A seat of a sequence."""

    does: Literal["answer", "plan", "verify"] = "answer"
    """`answer`: it answers the question; `plan`: it says how to; `verify`: it accepts or rejects the last answer."""


def _named(given: object) -> object:
    return {"name": given} if isinstance(given, str) else given


AnySeat = Annotated[SeatOptions, BeforeValidator(_named, json_schema_input_type=Name | SeatOptions)]
"""A word is a name."""
AnyWorker = Annotated[WorkerSeat, BeforeValidator(_named, json_schema_input_type=Name | WorkerSeat)]
AnySequenceSeat = Annotated[SequenceSeat, BeforeValidator(_named, json_schema_input_type=Name | SequenceSeat)]


class GraphOptions(PluginOptions):
    """Who speaks when in a team, and who reads what."""

    tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Most tokens that all seats together say in an episode, shared by those that speak at once; without a limit by
    default. It ends where none are left."""

    def seats(self) -> tuple[SeatOptions, ...]:
        """Return all seats."""
        raise NotImplementedError(f"{type(self).__name__} has no seats()")

    def stages(self) -> Stages:
        """Return who speaks at once, in turn, in the longest episode."""
        raise NotImplementedError(f"{type(self).__name__} has no stages()")

    def certain_stages(self) -> int:
        """Return how many first stages every episode has that runs out of no tokens."""
        return len(self.stages())

    def most_turns(self, name: str) -> int:
        """Return the most turns of a seat in an episode."""
        return sum(name in stage for stage in self.stages())

    def heard(self, seat: SeatOptions) -> frozenset[str]:
        """Return whose words may reach a seat."""
        stages, found = self.stages(), set[str]()
        for place, stage in enumerate(stages):
            if seat.name in stage:
                before = stages[max(place - 1, 0) : place] if seat.sees == "last" else stages[:place]
                found.update(name for one in before for name in one)
        allowed = found if isinstance(seat.sees, str) else found & set(seat.sees)
        return frozenset() if seat.sees == "own" else frozenset(allowed - {seat.name})

    def roles(self, reply_tokens: int) -> tuple[RoleFacts, ...]:
        """Return the roles of a team whose replies have at most so many tokens."""
        stages, seats = self.stages(), self.seats()
        fewest = Counter(name for stage in self._afforded(reply_tokens) for name in stage)
        names = [seat.name for seat in seats]
        return tuple(
            RoleFacts(
                name=seat.name,
                min_turns=fewest[seat.name],
                max_turns=self.most_turns(seat.name),
                hears=tuple(name for name in names if name in self.heard(seat)),
                opens=seat.name in stages[0],
            )
            for seat in seats
        )

    def _afforded(self, reply_tokens: int) -> Iterator[Sequence[str]]:
        """List the stages that every episode has, also one whose replies are as long as they may be."""
        left = self.tokens
        for stage in islice(self.stages(), self.certain_stages()):
            if left is not None:
                if left < len(stage):
                    return
                left -= len(stage) * min(reply_tokens, left // len(stage))
            yield stage

    @model_validator(mode="after")
    def _seats_are_told_apart(self) -> Self:
        """Refuse two seats of one name, and words of seats that are not there."""
        names = [seat.name for seat in self.seats()]
        if len(names) > MOST_SEATS:
            raise ValueError(f"there are {len(names)} seats, at most {MOST_SEATS} are allowed; {MOST_SEATS} fit")
        for seat in self.seats():
            if names.count(seat.name) > 1:
                raise ValueError(f"two seats are named {seat.name}; give each a name of its own")
            unknown = [] if isinstance(seat.sees, str) else [name for name in seat.sees if name not in names]
            if unknown:
                raise ValueError(f"{seat.name} cannot see {unknown[0]}; seats: {', '.join(names)}")
        return self

    @classmethod
    def check(cls) -> None:
        """Raise where the options cannot be used: their plain values must have roles."""
        cls.model_validate({}).roles(1)


def _seats(*names: str) -> tuple[SeatOptions, ...]:
    return tuple(SeatOptions(name=name) for name in names)


class SequenceGraph(GraphOptions):
    """Seats speak one after the other and read what was said before; for so many rounds. The last answer counts."""

    type: Literal["sequence"] = "sequence"
    order: tuple[AnySequenceSeat, ...] = Field(
        default=(SequenceSeat(name="solver"), SequenceSeat(name="reviser")), min_length=1, max_length=MOST_SEATS
    )
    """The seats in the order in which they speak; at least one answers."""
    rounds: int = Field(default=1, ge=1, le=8)
    """Times that all speak; from the second on, the first reads what the last said."""

    @model_validator(mode="after")
    def _somebody_answers(self) -> Self:
        if all(seat.does != "answer" for seat in self.order):
            raise ValueError("no seat answers the question; does: answer fits for one of them")
        return self

    def seats(self) -> tuple[SequenceSeat, ...]:
        return self.order

    def stages(self) -> Stages:
        return tuple((seat.name,) for seat in self.order) * self.rounds


class DebateGraph(GraphOptions):
    """Seats answer at once, then each reads the others' answers and answers again. A judge or the majority decides."""

    type: Literal["debate"] = "debate"
    debaters: tuple[AnySeat, ...] = Field(
        default=_seats("debater_1", "debater_2", "debater_3"), min_length=2, max_length=MOST_SEATS
    )
    """Those who answer; of as many votes, the earlier answer counts."""
    rounds: int = Field(default=2, ge=1, le=8)
    """Times that all answer, the first without having read anything."""
    judge: AnySeat | None = None
    """Who reads the answers in the end and answers last; without one the most frequent last answer counts."""

    def seats(self) -> tuple[SeatOptions, ...]:
        return (*self.debaters, *([self.judge] if self.judge else []))

    def stages(self) -> Stages:
        debate = (tuple(seat.name for seat in self.debaters),) * self.rounds
        return (*debate, (self.judge.name,)) if self.judge else debate


class MixtureGraph(GraphOptions):
    """Seats answer at once, in so many layers that each read the one before; an aggregator reads all and answers."""

    type: Literal["mixture"] = "mixture"
    proposers: tuple[AnySeat, ...] = Field(
        default=_seats("proposer_1", "proposer_2", "proposer_3"), min_length=1, max_length=MOST_SEATS
    )
    """Those who propose answers."""
    layers: int = Field(default=1, ge=1, le=8)
    """Times that they propose."""
    aggregator: AnySeat = SeatOptions(name="aggregator")
    """Who answers for the team."""

    def seats(self) -> tuple[SeatOptions, ...]:
        return (*self.proposers, self.aggregator)

    def stages(self) -> Stages:
        return (*((tuple(seat.name for seat in self.proposers),) * self.layers), (self.aggregator.name,))


class VerifyGraph(GraphOptions):
    """A generator answers and a verifier accepts or rejects; until it accepts or the rounds end."""

    type: Literal["verify"] = "verify"
    generator: AnySeat = SeatOptions(name="generator")
    """Who answers, and answers again after a rejection."""
    verifier: AnySeat = SeatOptions(name="verifier")
    """Who ends its reply with `accept` or `reject`; a reply with neither rejects and is worth nothing."""
    rounds: int = Field(default=2, ge=1, le=16)
    """Most answers."""

    def seats(self) -> tuple[SeatOptions, ...]:
        return (self.generator, self.verifier)

    def stages(self) -> Stages:
        return ((self.generator.name,), (self.verifier.name,)) * self.rounds

    def certain_stages(self) -> int:
        return 2


class HubGraph(GraphOptions):
    """A planner asks workers, several at once if it likes, reads what they say and answers.

    It asks by a line `ask NAME: question` per worker. A reply without such a line is the team's answer.
    """

    type: Literal["hub"] = "hub"
    planner: AnySeat = SeatOptions(name="planner")
    """Who asks and answers."""
    workers: tuple[AnyWorker, ...] = Field(
        default=(WorkerSeat(name="worker_1"), WorkerSeat(name="worker_2")), min_length=1, max_length=MOST_SEATS
    )
    """Who is asked: each reads its own question alone, and of the others what `sees` says."""
    rounds: int = Field(default=2, ge=1, le=16)
    """Most times that the planner asks; then it has to answer."""

    def seats(self) -> tuple[SeatOptions, ...]:
        return (self.planner, *self.workers)

    def stages(self) -> Stages:
        workers = tuple(seat.name for seat in self.workers)
        return (*(((self.planner.name,), workers) * self.rounds), (self.planner.name,))

    def certain_stages(self) -> int:
        return 1

    def heard(self, seat: SeatOptions) -> frozenset[str]:
        asked_by = frozenset() if seat == self.planner else frozenset({self.planner.name})
        return super().heard(seat) | asked_by


class DialogueGraph(GraphOptions):
    """A moderator names who speaks next, until it ends the talk or the turns are used. The last answer counts.

    It names a seat by a line `next: NAME`, and ends by `end` once somebody has spoken. Where it does neither, the next
    seat in order speaks.
    """

    type: Literal["dialogue"] = "dialogue"
    moderator: AnySeat = SeatOptions(name="moderator")
    """Who calls upon the others and answers nothing itself."""
    speakers: tuple[AnySeat, ...] = Field(default=_seats("speaker_1", "speaker_2"), min_length=1, max_length=MOST_SEATS)
    """Who answers when called upon."""
    turns: int = Field(default=4, ge=1, le=64)
    """Most turns of all speakers together."""

    def seats(self) -> tuple[SeatOptions, ...]:
        return (self.moderator, *self.speakers)

    def stages(self) -> Stages:
        called = (self.speakers[turn % len(self.speakers)].name for turn in range(self.turns))
        return tuple(stage for name in called for stage in ((self.moderator.name,), (name,)))

    def certain_stages(self) -> int:
        return 1

    def most_turns(self, name: str) -> int:
        return self.turns

    def heard(self, seat: SeatOptions) -> frozenset[str]:
        others = frozenset(other.name for other in self.seats()) - {seat.name}
        match seat.sees:
            case "own":
                return frozenset()
            case "last" if seat != self.moderator:
                return frozenset({self.moderator.name})
            case str():
                return others
        return others & frozenset(seat.sees)


GRAPH: Kind[GraphOptions] = Kind(
    "graph",
    "/environment/graph",
    GraphOptions,
    (SequenceGraph, DebateGraph, MixtureGraph, VerifyGraph, HubGraph, DialogueGraph),
)
GraphSpec = Annotated[GraphOptions, OneOf(GRAPH)]
ALONE = SequenceGraph(order=(SequenceSeat(name="solver"),))
"""One agent without a team."""


def team_facts(title: str, graph: GraphOptions, reply_tokens: int, solved_text: str) -> EnvironmentFacts:
    """Return the facts of a team that answers questions, whose scores are from 0 to 1."""
    roles = graph.roles(reply_tokens)
    return EnvironmentFacts(title, roles, None, 1.0, 1.0, solved_text, rewards_turns=True, stages=graph.stages())
