"""Which game the team plays. One variant per environment; the type is the name."""

from math import ceil
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict


class Latency(Strict):
    """Real waiting time an environment adds before it answers a turn, capped."""

    shape: Literal["log_normal", "normal"] = "log_normal"
    scale_s: float = Field(ge=0.0, le=60.0)
    """Median of the wait; of a normal one its mean, of what is not below 0."""
    sigma: float = Field(default=1.0, ge=0.0, le=60.0)
    """Of the wait's logarithm; of a normal wait in seconds."""
    cap_s: float = Field(default=10.0, gt=0.0, le=600.0)
    slow_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of episodes whose environment is slow: its first answer takes `slow_s` longer, whatever the cap."""
    slow_s: float = Field(default=0.0, ge=0.0, le=3600.0)

    @model_validator(mode="after")
    def _wide_only_when_normal(self) -> Self:
        if self.shape == "log_normal" and self.sigma > 3.0:
            raise ValueError(f"a logarithm with sigma {self.sigma:g} is too wide; 3 fits, or shape: normal")
        return self


class _Environment(Strict):
    latency: Latency | None = None
    """Real waiting time before each environment answer; none by default."""


class ReferenceGame(_Environment):
    """A speaker names an object with invented words, a listener picks its attributes.

    Score: share of attributes right.
    """

    type: Literal["reference_game"] = "reference_game"
    attributes: int = Field(default=2, ge=1, le=4)
    values: int = Field(default=4, ge=2, le=8)
    """Values per attribute; there are values ** attributes objects."""
    symbols: int = Field(default=32, ge=2, le=64)
    """Size of the speaker's alphabet."""
    message_length: int = Field(default=2, ge=1, le=8)

    @model_validator(mode="after")
    def _a_perfect_code_exists(self) -> Self:
        objects, codes = self.values**self.attributes, self.symbols**self.message_length
        if codes < objects:
            length = next(n for n in range(1, 64) if self.symbols**n >= objects)
            raise ValueError(f"{codes} messages cannot name {objects} objects; message_length: {length} fits")
        return self


class HotCold(_Environment):
    """A guesser finds a hidden number with the one-token hints of a hinter who knows it.

    Score: 1 for the first guess, less for each further one.
    """

    type: Literal["hot_cold"] = "hot_cold"
    numbers: int = Field(default=8, ge=2, le=32)
    guesses: int = Field(default=4, ge=1, le=16)
    symbols: int = Field(default=8, ge=2, le=32)
    """Size of the hinter's alphabet."""


class Arithmetic(_Environment):
    """Planner, solver and an honest verifier on expressions such as `2 + 3 * 4` modulo m."""

    type: Literal["arithmetic"] = "arithmetic"
    modulus: int = Field(default=5, ge=3, le=11)
    operands: int = Field(default=3, ge=3, le=5)
    """Numbers in an expression: the planner acts operands - 2 times, solver and verifier operands - 1 times."""
    corrupt_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of lines that the verifier is shown with a false result, so that accepting is not always right."""
    held_out_share: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Share of expressions kept for evaluation; training never sees them."""


class Kitchen(_Environment):
    """Cooks in a row hand dishes over counters against orders that expire, in the manner of CuisineWorld.

    Score: dishes served. Orders come at one of five loads; a tick is one action of every cook.
    """

    type: Literal["kitchen"] = "kitchen"
    cooks: int = Field(default=2, ge=2, le=5)
    turns: int = Field(default=8, ge=4, le=64)
    actions_per_turn: int = Field(default=2, ge=1, le=4)
    dishes: int = Field(default=2, ge=1, le=16)
    """Orders of an episode, so the highest score."""
    recipes: int = Field(default=3, ge=1, le=3)
    """Kinds of dishes that orders may ask for."""

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


class ForeignGame(_Environment):
    """A game of another package. It plays in processes of its own, which a deadline may kill."""

    opponent: Literal["agent", "random"] = "agent"
    """Who has the second seat of a game of two sides: another agent, or uniformly random legal play."""
    setup_timeout_s: float = Field(default=120.0, gt=0.0, le=600.0)
    """How long an episode may take to begin, the start of its process included."""
    step_timeout_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """How long the game may take to answer a move."""

    SOLO: ClassVar[tuple[str, ...]] = ()
    """Games without a second side."""

    def second_side_exists(self, game: str) -> None:
        """Refuse a random opponent where there is nobody to oppose. Raises ValueError."""
        if self.opponent == "random" and game in self.SOLO:
            raise ValueError(f"{game} has no second side that could play at random; opponent: agent fits")


class PettingZoo(ForeignGame):
    """A game of the package pettingzoo. Score: what its rewards come to between the worst (0) and the best (1)."""

    type: Literal["pettingzoo"] = "pettingzoo"
    game: Literal["tictactoe", "connect_four", "rps", "pursuit"] = "tictactoe"

    SOLO: ClassVar[tuple[str, ...]] = ("pursuit",)

    @model_validator(mode="after")
    def _has_sides(self) -> Self:
        self.second_side_exists(self.game)
        return self


class TextArena(ForeignGame):
    """A game of the package textarena, whose texts become words. Score: its reward between the worst and the best."""

    type: Literal["textarena"] = "textarena"
    game: Literal["nim", "tic_tac_toe", "guess_the_number"] = "nim"

    SOLO: ClassVar[tuple[str, ...]] = ("guess_the_number",)

    @model_validator(mode="after")
    def _has_sides(self) -> Self:
        self.second_side_exists(self.game)
        return self


EnvironmentSpec = Annotated[
    ReferenceGame | HotCold | Arithmetic | Kitchen | PettingZoo | TextArena, Field(discriminator="type")
]
