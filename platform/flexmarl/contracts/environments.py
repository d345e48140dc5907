"""What every plane knows of the environments without playing them: roles, turns, reference scores.

The playing code lives in `workers.rollout.environments`; a conformance test compares the two, and plays random legal
policies to confirm `random_score`.
"""

from dataclasses import dataclass

from flexmarl.contracts.games import facts_of
from flexmarl.contracts.spec.environment import (
    Arithmetic,
    EnvironmentSpec,
    HotCold,
    Kitchen,
    PettingZoo,
    ReferenceGame,
    TextArena,
)


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """A seat of an environment: bounds of its model calls per episode, and whom it hears from."""

    name: str
    min_turns: int
    max_turns: int
    hears: tuple[str, ...] = ()
    reply_tokens: int | None = None
    """Exact length of every reply: no word ends it earlier. None where a stop word may."""
    opens: bool = False
    """Asked before anybody has spoken."""


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    title: str
    roles: tuple[RoleFacts, ...]
    random_score: float | None
    """Mean team score of uniformly random legal play; None where it was not determined for these settings."""
    optimum: float
    """Highest reachable mean team score."""
    best_score: float
    """Highest team score of a single episode; the lowest is 0."""
    solved_text: str
    """What "solved" means, for people."""
    rewards_turns: bool = False
    """It says what a turn earned as soon as that is over, and not only what the episode did."""


def environment_facts(spec: EnvironmentSpec) -> EnvironmentFacts:
    """Return the facts of an environment under its settings."""
    match spec:
        case ReferenceGame():
            return _reference_game(spec)
        case HotCold():
            return _hot_cold(spec)
        case Arithmetic():
            return _arithmetic(spec)
        case Kitchen():
            return _kitchen(spec)
        case PettingZoo() | TextArena():
            return _game(spec)


def _reference_game(spec: ReferenceGame) -> EnvironmentFacts:
    roles = (
        RoleFacts("speaker", 1, 1, reply_tokens=spec.message_length, opens=True),
        RoleFacts("listener", 1, 1, ("speaker",), spec.attributes),
    )
    random_score = 1.0 / (spec.attributes * spec.values)
    return EnvironmentFacts("Reference game", roles, random_score, 1.0, 1.0, "every attribute is right")


def hot_cold_score(guesses: int, used: int) -> float:
    """Score of a number found at guess `used` of `guesses`: from 1 down, at least 0.6."""
    return 1.0 - 0.4 * (used - 1) / guesses


def _hot_cold(spec: HotCold) -> EnvironmentFacts:
    roles = (
        RoleFacts("guesser", 1, spec.guesses, ("hinter",), 1, opens=True),
        RoleFacts("hinter", 0, spec.guesses - 1, ("guesser",), 1),
    )
    random_score, optimum, left = 0.0, 0.0, spec.numbers
    for used in range(1, spec.guesses + 1):
        score = hot_cold_score(spec.guesses, used)
        random_score += score * (1 - 1 / spec.numbers) ** (used - 1) / spec.numbers
        # A deterministic team reaches guess k with symbols ** (k - 1) hint histories, and finds one number in each.
        found = min(left, spec.symbols ** (used - 1))
        optimum += score * found / spec.numbers
        left -= found
    return EnvironmentFacts("Hot or cold", roles, random_score, optimum, 1.0, "the number is found")


def _arithmetic(spec: Arithmetic) -> EnvironmentFacts:
    plans, steps = spec.operands - 2, spec.operands - 1
    roles = (
        RoleFacts("planner", plans, plans, ("solver",), 3, opens=plans > 0),
        RoleFacts("solver", steps, steps, ("planner",), 1, opens=plans == 0),
        RoleFacts("verifier", steps, steps, ("planner", "solver"), 1),
    )
    random_score = 0.5**steps / spec.modulus
    solved = "answer right and every verdict right"
    return EnvironmentFacts("Planner, solver, verifier", roles, random_score, 1.0, 1.0, solved, rewards_turns=True)


_RANDOM_DISHES = {(2, 8, 2, 2, 3): 0.24, (3, 8, 2, 2, 3): 0.033, (4, 16, 2, 2, 3): 0.12}
"""Mean dishes of random play by (cooks, turns, actions per turn, dishes, recipes), each from 20,000 episodes."""


def _kitchen(spec: Kitchen) -> EnvironmentFacts:
    cooks = [f"cook_{i + 1}" for i in range(spec.cooks)]
    turns, length = spec.turns, spec.actions_per_turn
    roles = tuple(RoleFacts(c, turns, turns, tuple(x for x in cooks if x != c), length, opens=True) for c in cooks)
    settings = (spec.cooks, spec.turns, spec.actions_per_turn, spec.dishes, spec.recipes)
    dishes = float(spec.dishes)
    return EnvironmentFacts("Kitchen", roles, _RANDOM_DISHES.get(settings), dishes, dishes, "all dishes served", True)


def _game(spec: PettingZoo | TextArena) -> EnvironmentFacts:
    game = facts_of(spec.type, spec.game)
    seats = game.played(spec.opponent)
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
        return EnvironmentFacts(game.title, roles, 0.5, 0.5, 0.5, "never: what one side wins, the other loses")
    won = "the game is won" if game.sides == "versus" else "the best reward is reached"
    return EnvironmentFacts(game.title, roles, game.random_score, game.optimum, 1.0, won)
