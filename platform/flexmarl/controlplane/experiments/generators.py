"""Generators of questions that a specification sets, built in a process of their own when it is submitted.

Only the package knows what its options may be, and what they make of memory and time is no matter of a web process.
"""

import json
import os
import subprocess
import sys
from functools import lru_cache

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.reasoning_gym import ReasoningGym
from flexmarl.host.exits import last_words

LIMIT_S = 30.0
_MODULE = "workers.rollout.environments.generators"
_SETTINGS = {
    # All that the process knows: nothing of this one's environment, which has credentials.
    "PATH": os.defpath,
    # As where it plays: sets of words have one order; one thread.
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
}


class GeneratorUnchecked(RuntimeError):
    """The process gave no answer; the text says why."""


def refused_generators(spec: ExperimentSpec) -> list[Problem]:
    """Return a refusal where the environment's generator cannot be built as it is set."""
    environment = spec.environment
    if not isinstance(environment, ReasoningGym):
        return []
    asked = environment.model_dump_json(include={"type", "dataset", "config", "seed", "training", "held_out"})
    try:
        said = _checked(asked)
    except GeneratorUnchecked as unchecked:
        hint = f"Set smaller options, or config: {{}} for those that {environment.dataset} comes with."
        return [_problem("/config", f"{environment.dataset} {unchecked}", hint)]
    return [_problem(said["below"], said["detail"], said["hint"])] if said else []


def _problem(below: str, detail: str, hint: str) -> Problem:
    return Problem(pointer=f"/environment{below}", code="refused_by_generator", detail=f"{detail}.", hint=hint)


@lru_cache(maxsize=64)
def _checked(asked: str) -> dict[str, str]:
    """Return what the generator says of settings, remembered. Raises GeneratorUnchecked, which is not remembered."""
    environment = {**_SETTINGS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-m", _MODULE],
            input=asked, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise GeneratorUnchecked(f"makes no questions within {LIMIT_S:g} s") from None
    if done.returncode != 0:
        last = last_words(done.stderr, done.returncode)[:300]
        raise GeneratorUnchecked(f"cannot be built: {last}")
    said: dict[str, str] = json.loads(done.stdout)
    return said
