"""Which game the team plays. One variant per environment; the type is the name."""

from math import ceil, factorial
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from flexmarl.contracts.games import facts_of
from flexmarl.contracts.plugins import Kind, OneOf
from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.contracts.specification.environment_base import (
    EnvironmentFacts,
    EnvironmentOptions,
    IsolatedEnvironmentOptions,
    RoleFacts,
)
from flexmarl.contracts.specification.graphs import GraphSpec, SequenceGraph, team_facts
from flexmarl.contracts.specification.logged import LoggedEpisodes
from flexmarl.contracts.specification.nemo_gym import NemoGymUrl
from flexmarl.contracts.specification.openenv import OpenEnvUrl
from flexmarl.contracts.specification.package import PackageEnvironment
from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.contracts.specification.reasoning_gym import ReasoningGym
from flexmarl.contracts.specification.shop import Shop

_RANDOM_DISHES = {(2, 8, 2, 2, 3): 0.24, (3, 8, 2, 2, 3): 0.033, (4, 16, 2, 2, 3): 0.12}
"""Mean dishes of random play by (cooks, turns, actions per turn, dishes, recipes), each from 20,000 episodes."""


def hot_cold_score(guesses: int, used: int) -> float:
    """Score of a number found at guess `used` of `guesses`: from 1 down, at least 0.6."""
    return 1.0 - 0.4 * (used - 1) / guesses


class ReferenceGame(EnvironmentOptions):
    """A speaker names an object with invented words, a listener picks its attributes.

    Score: share of attributes right.
    """

    type: Literal["reference_game"] = "reference_game"
    attributes: int = Field(default=2, ge=1, le=4)
    """Attributes that an object has, such as colour and shape."""
    values: int = Field(default=4, ge=2, le=8)
    """Values per attribute; there are values ** attributes objects."""
    symbols: int = Field(default=32, ge=2, le=64)
    """Size of the speaker's alphabet."""
    message_length: int = Field(default=2, ge=1, le=8)
    """Symbols in a message of the speaker."""

    @model_validator(mode="after")
    def _a_perfect_code_exists(self) -> Self:
        objects, codes = self.values**self.attributes, self.symbols**self.message_length
        if codes < objects:
            length = next(n for n in range(1, 64) if self.symbols**n >= objects)
            raise ValueError(f"{codes} messages cannot name {objects} objects; message_length: {length} fits")
        return self

    def facts(self) -> EnvironmentFacts:
        roles = (
            RoleFacts("speaker", 1, 1, reply_tokens=self.message_length, opens=True),
            RoleFacts("listener", 1, 1, ("speaker",), self.attributes),
        )
        random_score = 1.0 / (self.attributes * self.values)
        return EnvironmentFacts("Reference game", roles, random_score, 1.0, 1.0, "every attribute is right")


class HotCold(EnvironmentOptions):
    """A guesser finds a hidden number with the one-token hints of a hinter who knows it.

    Score: 1 for the first guess, less for each further one.
    """

    tells_task: ClassVar[bool] = True

    type: Literal["hot_cold"] = "hot_cold"
    numbers: int = Field(default=8, ge=2, le=32)
    """Numbers that the hidden one is drawn from."""
    guesses: int = Field(default=4, ge=1, le=16)
    """Maximum guesses in an episode."""
    symbols: int = Field(default=8, ge=2, le=32)
    """Size of the hinter's alphabet."""

    def facts(self) -> EnvironmentFacts:
        roles = (
            RoleFacts("guesser", 1, self.guesses, ("hinter",), 1, opens=True),
            RoleFacts("hinter", 0, self.guesses - 1, ("guesser",), 1),
        )
        random_score, optimum, left = 0.0, 0.0, self.numbers
        for used in range(1, self.guesses + 1):
            score = hot_cold_score(self.guesses, used)
            random_score += score * (1 - 1 / self.numbers) ** (used - 1) / self.numbers
            # A deterministic team reaches guess k with symbols ** (k - 1) hint histories, and finds one number in each.
            found = min(left, self.symbols ** (used - 1))
            optimum += score * found / self.numbers
            left -= found
        return EnvironmentFacts("Hot or cold", roles, random_score, optimum, 1.0, "the number is found")


class Arithmetic(EnvironmentOptions):
    """Planner, solver and an honest verifier on expressions such as `2 + 3 * 4` modulo m."""

    demonstrates: ClassVar[bool] = True

    type: Literal["arithmetic"] = "arithmetic"
    modulus: int = Field(default=5, ge=3, le=11)
    """Results are taken modulo this."""
    operands: int = Field(default=3, ge=3, le=5)
    """Numbers in an expression: the planner acts operands - 2 times, solver and verifier operands - 1 times."""
    corrupt_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of lines shown to the verifier with a wrong result, so that accepting is not always right."""
    held_out_share: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Share of expressions kept for evaluation; training never sees them."""

    def facts(self) -> EnvironmentFacts:
        plans, steps = self.operands - 2, self.operands - 1
        roles = (
            RoleFacts("planner", plans, plans, ("solver",), 3, opens=plans > 0),
            RoleFacts("solver", steps, steps, ("planner",), 1, opens=plans == 0),
            RoleFacts("verifier", steps, steps, ("planner", "solver"), 1),
        )
        random_score = 0.5**steps / self.modulus
        solved = "answer right and every verdict right"
        return EnvironmentFacts("Planner, solver, verifier", roles, random_score, 1.0, 1.0, solved, rewards_turns=True)


class Kitchen(EnvironmentOptions):
    """Cooks in a row hand dishes over counters against orders that expire, in the manner of CuisineWorld.

    Score: dishes served. Orders come at one of five loads; a tick is one action of every cook.
    """

    demonstrates: ClassVar[bool] = True

    type: Literal["kitchen"] = "kitchen"
    cooks: int = Field(default=2, ge=2, le=5)
    """Number of agents."""
    turns: int = Field(default=8, ge=4, le=64)
    """Turns of each cook in an episode."""
    actions_per_turn: int = Field(default=2, ge=1, le=4)
    """Actions in a reply."""
    dishes: int = Field(default=2, ge=1, le=16)
    """Orders per episode; also the maximum score."""
    recipes: int = Field(default=3, ge=1, le=3)
    """Number of dish types."""

    LOADS: ClassVar[tuple[float, ...]] = (1.0, 1.5, 2.0, 2.5, 3.0)
    """CuisineWorld's factors on the interval between orders; a task draws one."""

    @property
    def ticks(self) -> int:
        return self.turns * self.actions_per_turn

    def order_windows(self, load: float) -> tuple[tuple[int, int], ...]:
        """Return the first and last tick (from 1) at which each order can be served.

        CuisineWorld's rule: interval = ceil(0.3 load wait), lifetime = ceil(2.5 interval), with the wait scaled to
        the episode (10 for two dishes in 16 ticks).
        """
        wait = self.ticks * 0.625 / max(self.dishes - 1, 1)
        interval = ceil(0.3 * load * wait - 1e-9)
        lifetime = ceil(2.5 * interval)
        arrivals = [order * interval for order in range(self.dishes)]
        return tuple((arrival + 1, min(arrival + lifetime, self.ticks)) for arrival in arrivals)

    def feasible(self) -> bool:
        """Tell whether perfect play serves every order at every load.

        A dish needs two ticks of every cook, the next one three ticks more. With several recipes nobody can begin
        before the turn in which the order is seen.
        """
        for load in self.LOADS:
            served = -3
            for first, last in self.order_windows(load):
                seen = -(-(first - 1) // self.actions_per_turn) * self.actions_per_turn if self.recipes > 1 else 0
                served = max(served + 3, first, seen + 2 * self.cooks)
                if served > last:
                    return False
        return True

    @model_validator(mode="after")
    def _orders_can_be_served(self) -> Self:
        if not self.feasible():
            legal = [n for n in range(1, self.dishes) if self.model_copy(update={"dishes": n}).feasible()]
            hint = f"dishes: {legal[-1]} fits" if legal else "more turns are needed"
            asked = f"{self.dishes} dishes in {self.ticks} ticks"
            raise ValueError(f"{self.cooks} cooks cannot serve {asked} at every load; {hint}")
        return self

    def facts(self) -> EnvironmentFacts:
        cooks = [f"cook_{i + 1}" for i in range(self.cooks)]
        turns, length = self.turns, self.actions_per_turn
        roles = tuple(RoleFacts(c, turns, turns, tuple(x for x in cooks if x != c), length, opens=True) for c in cooks)
        settings = (self.cooks, self.turns, self.actions_per_turn, self.dishes, self.recipes)
        dishes = float(self.dishes)
        return EnvironmentFacts(
            "Kitchen", roles, _RANDOM_DISHES.get(settings), dishes, dishes, "all dishes served", True
        )


class Sums(EnvironmentOptions):
    """A team answers a sum in chat messages: as it comes, a solver does and a reviser answers again.

    Score: 1 if the last number of the team's answer is right. For language models with a chat template.
    """

    converses: ClassVar[bool] = True
    tells_task: ClassVar[bool] = True
    tells_answer: ClassVar[bool] = True
    lists_held_out: ClassVar[bool] = True

    type: Literal["sums"] = "sums"
    largest: int = Field(default=9, ge=4, le=999)
    """Largest number in a sum; the least is 0."""
    terms: int = Field(default=2, ge=2, le=4)
    """Numbers in a sum."""
    held_out: int = Field(default=20, ge=1, le=200)
    """Sums kept for evaluation, at least; those of the same numbers in another order are kept with them."""
    reply_tokens: int = Field(default=12, ge=1, le=1024)
    """Maximum tokens in a reply; `sampling.max_tokens` of an agent may set fewer."""
    graph: GraphSpec = SequenceGraph()
    """Who speaks when in the team, and who reads what."""

    MOST_SUMS: ClassVar[int] = 100_000

    @model_validator(mode="after")
    def _sums_are_left(self) -> Self:
        """Refuse more sums than are listed, and fewer than can be split."""
        sums = (self.largest + 1) ** self.terms
        if sums > self.MOST_SUMS:
            largest = max(n for n in range(4, 1000) if (n + 1) ** self.terms <= self.MOST_SUMS)
            raise ValueError(f"there are {sums} sums, at most {self.MOST_SUMS} are allowed; largest: {largest} fits")
        # The last kind that is kept may bring all of its orders.
        if self.held_out + factorial(self.terms) > sums // 2:
            most = sums // 2 - factorial(self.terms)
            raise ValueError(f"held_out leaves too few of {sums} sums for training; held_out: {most} fits")
        return self

    def facts(self) -> EnvironmentFacts:
        return team_facts("Sums", self.graph, self.reply_tokens, "the team's answer is right")


class GameOptions(IsolatedEnvironmentOptions):
    """A game of another package."""

    opponent: Literal["agent", "random"] = "agent"
    """Second side of a two-sided game: another agent, or uniformly random legal moves."""
    game: str

    SOLO: ClassVar[tuple[str, ...]] = ()
    """Games without a second side."""

    @model_validator(mode="after")
    def _has_sides(self) -> Self:
        """Refuse a random opponent where there is nobody to oppose."""
        if self.opponent == "random" and self.game in self.SOLO:
            raise ValueError(f"{self.game} has no second side for a random opponent; opponent: agent fits")
        return self

    def facts(self) -> EnvironmentFacts:
        game = facts_of(self.type, self.game)
        seats = game.played(self.opponent)
        names = [seat.name for seat in seats]
        roles = tuple(
            # An illegal reply ends a game early: only the first move is certain.
            RoleFacts(
                name=seat.name,
                min_turns=int(index == 0 or game.simultaneous),
                max_turns=seat.most_turns,
                hears=tuple(name for name in names if name != seat.name),
                reply_tokens=1,
                opens=index == 0 or game.simultaneous,
            )
            for index, seat in enumerate(seats)
        )
        if len(seats) > 1 and game.sides == "versus":
            # What one side wins the other loses: the mean of both says nothing about how well they play.
            return EnvironmentFacts(game.title, roles, 0.5, 0.5, 0.5, "never: the game is zero-sum")
        won = "the game is won" if game.sides == "versus" else "the best reward is reached"
        return EnvironmentFacts(game.title, roles, game.random_score, game.optimum, 1.0, won)


class PettingZoo(GameOptions):
    """A game of the package pettingzoo. Score: what its rewards come to between the worst (0) and the best (1)."""

    type: Literal["pettingzoo"] = "pettingzoo"
    game: Literal["tictactoe", "connect_four", "rps", "pursuit"] = "tictactoe"
    """Which of the package's games."""

    SOLO: ClassVar[tuple[str, ...]] = ("pursuit",)


class TextArena(GameOptions):
    """A game of the package textarena, whose texts become words. Score: its reward between the worst and the best."""

    type: Literal["textarena"] = "textarena"
    game: Literal["nim", "tic_tac_toe", "guess_the_number"] = "nim"
    """Which of the package's games."""

    SOLO: ClassVar[tuple[str, ...]] = ("guess_the_number",)


ENVIRONMENT: Kind[EnvironmentOptions] = Kind(
    "environment",
    "/environment",
    EnvironmentOptions,
    (
        ReferenceGame,
        HotCold,
        Arithmetic,
        Kitchen,
        Sums,
        DatasetTasks,
        LoggedEpisodes,
        ReasoningGym,
        Shop,
        PettingZoo,
        TextArena,
        PackageEnvironment,
        OpenEnvUrl,
        NemoGymUrl,
        ProgramEnvironment,
    ),
    IsolatedEnvironmentOptions,
)
EnvironmentSpec = Annotated[EnvironmentOptions, OneOf(ENVIRONMENT, default=False)]
