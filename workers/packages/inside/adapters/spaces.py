"""Spaces of Gymnasium and PettingZoo in words: what is seen as text, and a text as what is done."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

MOST_NUMBERS = 512
"""Numbers of an observation that are still told."""
MOST_CHOICES = 4096


class Untold(ValueError):
    """A space that words do not say well."""


class NoMove(ValueError):
    """A reply that names no legal action; the text says what does."""


def readable(seen: Any, done: Any) -> None:
    """Refuse spaces that words do not say. Raises Untold."""
    if _numbers(seen) > MOST_NUMBERS:
        raise Untold(f"its observations have {_numbers(seen)} numbers, at most {MOST_NUMBERS} are told")
    kind = type(done).__name__
    if kind == "Discrete" and int(done.n) > MOST_CHOICES:
        raise Untold(f"it has {done.n} actions, at most {MOST_CHOICES} are told")
    if kind not in ("Discrete", "Text", "MultiDiscrete", "MultiBinary"):
        raise Untold(f"its actions are {kind}; those that can be said are Discrete, MultiDiscrete, MultiBinary, Text")


def _numbers(space: Any) -> int:
    kind = type(space).__name__
    if kind in ("Text", "Discrete"):
        return 1
    if kind == "Dict":
        return sum(map(_numbers, space.spaces.values()))
    if kind == "Tuple":
        return sum(map(_numbers, space.spaces))
    if kind in ("Box", "MultiDiscrete", "MultiBinary"):
        count = 1
        for side in space.shape:
            count *= int(side)
        return count
    raise Untold(f"its observations are {kind}")


def told(observation: Any) -> str:
    """Return an observation as text."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        return "\n".join(f"{name}: {told(value)}" for name, value in observation.items())
    if hasattr(observation, "tolist"):
        observation = observation.tolist()
    if isinstance(observation, Sequence):
        return f"[{', '.join(told(one) for one in observation)}]"
    if isinstance(observation, float):
        return f"{observation:.4g}"
    return str(observation)


def choices(space: Any, legal: Sequence[int] | None = None) -> str:
    """Return how an action is named; empty where any text is one."""
    kind = type(space).__name__
    if kind == "Discrete":
        start = int(getattr(space, "start", 0))
        if legal is not None:
            return f"Answer with one of: {', '.join(map(str, legal))}."
        return f"Answer with a number from {start} to {start + int(space.n) - 1}."
    if kind in ("MultiDiscrete", "MultiBinary"):
        return f"Answer with {_width(space)} numbers."
    return ""


def action_of(space: Any, text: str, legal: Sequence[int] | None = None) -> Any:
    """Return the action that a reply names: its last number or numbers, or all of it. Raises NoMove."""
    kind = type(space).__name__
    if kind == "Text":
        return text
    numbers = [int(one) for one in re.findall(r"-?\d+", text)]
    if kind == "Discrete":
        if numbers and (numbers[-1] in legal if legal is not None else space.contains(numbers[-1])):
            return numbers[-1]
        raise NoMove(f"That is no legal action. {choices(space, legal)}")
    action = _like(space, numbers[-_width(space) :])
    if action is None or not space.contains(action):
        raise NoMove(f"That is no legal action. {choices(space)}")
    return action


def _width(space: Any) -> int:
    return len(space.nvec) if type(space).__name__ == "MultiDiscrete" else int(space.n)


def _like(space: Any, numbers: list[int]) -> Any:
    """Return numbers in the form of a space; None where they are too few."""
    sample = space.sample()
    if len(numbers) != len(sample):
        return None
    for place, number in enumerate(numbers):
        sample[place] = number
    return sample
