"""Rows of a generator of the package reasoning-gym: its options checked, its rows built and split.

`python -m workers.rollout.environments.generators` reads an environment's settings from standard input and says on
standard output what the generator does not take: the control plane asks so when a run is submitted. Invariants: equal
settings give equal rows, in processes of equal PYTHONHASHSEED; no held-out question is trained on; an option names no
file outside the package; what a model wrote is never run as Python. The package is optional: it is imported when rows
are made.
"""

import ast
import contextlib
import copy
import json
import math
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import date
from datetime import time as time_of_day
from enum import Enum
from functools import cached_property
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

from flexmarl.contracts.specification.reasoning_gym import ReasoningGym

Row = Mapping[str, Any]
"""`question`, `answer` and `metadata`, as the package makes them."""

_OWN = ("seed", "size")
"""Options that are settings of the environment."""
LOOK_S = 5.0
"""Seconds of a processor in which the check makes held-out questions; what it did not see shows when the first episode
begins."""
_MEMORY_BYTES = 4 * 2**30
_EVALUATED = tuple(
    f"reasoning_gym.{module}"
    for module in (
        "algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens",
    )
)  # fmt: skip
"""Modules that call `eval` on an answer which may be a list."""
_PARSED = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Generators that give an answer to sympy's parser, which runs it as Python."""
_NO_FORMULA = re.compile(r"""["'`_\\\[\]{}@:;]|\.\s*[A-Za-z]""")
"""No formula needs quotes, attributes or underscores; without them nothing outside sympy can be reached."""


class UnusableGenerator(ValueError):
    """A generator cannot be built as it is set. `below` is the setting's JSON pointer inside the environment."""

    def __init__(self, below: str, detail: str, hint: str = "") -> None:
        self.below, self.detail, self.hint = below, detail, hint
        super().__init__(f"{below.strip('/')}: {detail}")


@dataclass(frozen=True)
class GeneratorRows:
    """The questions of an environment. Making them raises UnusableGenerator."""

    spec: ReasoningGym

    @cached_property
    def dataset(self) -> Any:
        """The package's data set: as long as training and held-out rows with as many spare ones as are held out."""
        options = configured(self.spec.dataset, self.spec.config, "/config")
        size = self._first + self.spec.training
        create = import_module("reasoning_gym").create_dataset
        for module in _EVALUATED:
            vars(import_module(module))["eval"] = ast.literal_eval  # a list is read, not run
        try:
            return create(self.spec.dataset, seed=self.spec.seed, size=size, **options)
        except Exception as error:  # foreign code: whatever it raises is why the options cannot be had
            raise UnusableGenerator("/config", f"{self.spec.dataset} refuses it: {_said(error)}") from error

    @property
    def _first(self) -> int:
        """Index of the first row that is trained on."""
        return 2 * self.spec.held_out

    @cached_property
    def held_out(self) -> tuple[Row, ...]:
        """As many different questions as are wanted."""
        return self.collected(lambda: True)

    def collected(self, more: Callable[[], bool]) -> tuple[Row, ...]:
        """Make the held-out questions, fewer when `more` ends it."""
        found: dict[str, Row] = {}
        for index in range(self._first):
            if len(found) == self.spec.held_out or not more():
                return tuple(found.values())
            row = self._row(index)
            found.setdefault(row["question"], row)
        if len(found) < self.spec.held_out:
            detail = f"{len(found)} different questions among {self._first}, {self.spec.held_out} are wanted"
            raise UnusableGenerator("/held_out", detail, f"Set {max(1, len(found) // 2)}.")
        return tuple(found.values())

    def training(self, number: int) -> Row:
        """Return a training row by its number, from 0, or the next one whose question is not held out."""
        kept = {row["question"] for row in self.held_out}
        for offset in range(self.spec.training):
            row = self._row(self._first + (number + offset) % self.spec.training)
            if row["question"] not in kept:
                return row
        raise UnusableGenerator("/held_out", "every question is held out, none is left for training", "Set fewer.")

    def score(self, row: Row, answer: str) -> float:
        """Return what the generator gives an answer to a row. Raises what its code raises, ValueError for no number."""
        if row["metadata"]["source_dataset"] in _PARSED and _NO_FORMULA.search(answer):
            raise ValueError("no formula")
        score = float(self.dataset.score_answer(answer, copy.deepcopy(dict(row))))
        if math.isnan(score):
            raise ValueError("the score is not a number")
        return min(max(score, 0.0), 1.0)

    def _row(self, index: int) -> Row:
        try:
            row: Row = self.dataset[index]
        except UnusableGenerator:
            raise
        except Exception as error:  # foreign code: some options only break when a row is made
            raise UnusableGenerator("/config", f"{self.spec.dataset} makes no row {index}: {_said(error)}") from error
        return row


def configured(dataset: str, options: Mapping[str, Any], below: str) -> dict[str, Any]:
    """Turn JSON values into those that a generator's options take. Raises UnusableGenerator."""
    kind = import_module("reasoning_gym.factory").DATASETS[dataset][1]
    types = get_type_hints(kind)
    legal = [name for name in types if name not in _OWN]
    for name, value in options.items():
        if name not in legal:
            detail = f"{name} is not an option of {dataset}"
            raise UnusableGenerator(f"{below}/{name}", detail, f"Its options: {', '.join(legal) or 'none'}.")
        if name.endswith("_file") and os.path.basename(str(value)) != value:
            raise UnusableGenerator(f"{below}/{name}", f"{name} is not the name of a file in the package")
    made = {}
    for name, value in options.items():
        try:
            made[name] = converted(types[name], value)
        except (TypeError, ValueError, KeyError) as error:
            raise UnusableGenerator(f"{below}/{name}", f"{name}: {_said(error)}") from error
    if dataset == "composite":
        for place, part in enumerate(made.get("datasets") or ()):
            part.config = _of_part(part, f"{below}/datasets/{place}")
    return made


def _of_part(part: Any, below: str) -> dict[str, Any]:
    names = import_module("reasoning_gym.factory").DATASETS
    if part.name not in names:
        legal = f"Legal values: {', '.join(names)}."
        raise UnusableGenerator(f"{below}/name", f"{part.name} is not a generator", legal)
    if not isinstance(part.config, dict):
        raise UnusableGenerator(f"{below}/config", "config is not an object", "Write {}.")
    return configured(part.name, part.config, f"{below}/config")


def converted(kind: Any, value: Any) -> Any:
    """Turn a JSON value into a value of an option's type; what needs no turning stays. Raises what the type raises."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        types = get_type_hints(kind)
        return kind(**{name: converted(types.get(name), one) for name, one in value.items()})  # type: ignore[operator]
    if isinstance(origin, type) and issubclass(origin, Enum):
        return origin(value)
    if origin in (date, time_of_day):
        return origin.fromisoformat(value)
    if isinstance(value, list) and origin in (list, Sequence):
        return [converted(inner[0], one) for one in value]
    return tuple(value) if origin is tuple and isinstance(value, list) else value


def _said(error: Exception) -> str:
    """Return what an error says in one line, cut to a length that a page can show."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."


def refusal(spec: ReasoningGym) -> dict[str, str]:
    """Return why rows cannot be made, as `below`, `detail` and `hint`; empty when they can."""
    until = time.process_time() + LOOK_S
    try:
        rows = GeneratorRows(spec)
        if len(rows.collected(lambda: time.process_time() < until)) == spec.held_out:
            rows.training(0)
    except UnusableGenerator as unusable:
        return {"below": unusable.below, "detail": unusable.detail, "hint": unusable.hint}
    return {}


def main() -> None:
    """Say what is wrong with the settings that come in."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    spec = ReasoningGym.model_validate_json(sys.stdin.read())
    with contextlib.redirect_stdout(sys.stderr):  # some generators print
        said = refusal(spec)
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
