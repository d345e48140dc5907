"""What every plane knows of the built-in environments without playing them: roles, turns, reference scores.

The playing code lives in `workers.rollout.environments`; a conformance test compares the two.
"""

from dataclasses import dataclass

from flexmarl.contracts.spec.environment import Arithmetic, EnvironmentSpec, HotCold, Kitchen, ReferenceGame


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """A seat of an environment: bounds of its model calls per episode, and whom it hears from."""

    name: str
    min_turns: int
    max_turns: int
    hears: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    title: str
    roles: tuple[RoleFacts, ...]
    random_score: float
    """Mean team score of uniformly random legal play."""
    optimum: float
    """Highest reachable mean team score."""
    solved_text: str
    """What "solved" means, for people."""


def environment_facts(spec: EnvironmentSpec) -> EnvironmentFacts:
    """Return the facts of an environment under its settings."""
    match spec:
        case ReferenceGame():
            return EnvironmentFacts(
                "Reference game",
                (RoleFacts("speaker", 1, 1), RoleFacts("listener", 1, 1, ("speaker",))),
                1.0 / spec.values,
                1.0,
                "every attribute is right",
            )
        case HotCold():
            roles = (
                RoleFacts("guesser", 1, spec.guesses, ("hinter",)),
                RoleFacts("hinter", 0, spec.guesses - 1, ("guesser",)),
            )
            return EnvironmentFacts("Hot or cold", roles, 0.0, 1.0, "the number is found")
        case Arithmetic():
            roles = (
                RoleFacts("planner", 1, 1),
                RoleFacts("solver", spec.solver_attempts, spec.solver_attempts, ("planner",)),
                RoleFacts("verifier", 1, 1, ("solver",)),
            )
            return EnvironmentFacts("Planner, solver, verifier", roles, 0.0, 1.0, "answer right and verdict right")
        case Kitchen():
            cooks = tuple(f"cook_{i + 1}" for i in range(spec.cooks))
            roles = tuple(RoleFacts(c, spec.turns, spec.turns, tuple(x for x in cooks if x != c)) for c in cooks)
            return EnvironmentFacts("Kitchen", roles, 0.0, 2.0, "all dishes served")
