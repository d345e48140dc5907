"""Supervised warm-up: cross-entropy on an environment's demonstrations before version 0 is committed.

It is the policy gradient with advantage 1 and without entropy bonus, on replies a perfect team would give. The
optimizer of the run starts fresh afterwards.
"""

import random
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from flexmarl.contracts.specification.losses import PolicyGradientOptions
from flexmarl.contracts.specification.team import SupervisedWarmup
from workers.rollout.environments.base import Demonstration, Family
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.learner import Learner
from workers.training.objective import Objective
from workers.training.wire import TrainRow
from workers.vocabulary import Codec


@dataclass(frozen=True, slots=True)
class WarmedUp:
    steps: int
    seconds: float


def warm_up(
    learner: Learner,
    settings: SupervisedWarmup,
    family: Family[Any],
    roles: Collection[str],
    codec: Codec,
    rng: random.Random,
) -> WarmedUp:
    """Take up to `steps` steps within `max_seconds`; at least one."""
    began = time.perf_counter()
    objective = Objective.of(PolicyGradientOptions(aggregation="token_mean"))
    taken = 0
    while taken < settings.steps and (taken == 0 or time.perf_counter() - began < settings.max_seconds):
        rows = [_row(shown, codec) for shown in _draw(family, roles, settings.batch_size, rng)]
        gradient, stats = learner.gradient(rows, 0.0, objective)
        learner.descend(gradient, stats.z, settings.learning_rate)
        taken += 1
    learner.optimizer.reset()
    learner.accumulator.open(learner.accumulator.epoch)  # its memory may be the one that the gradients were in
    return WarmedUp(taken, time.perf_counter() - began)


def _draw(family: Family[Any], roles: Collection[str], count: int, rng: random.Random) -> list[Demonstration]:
    """Return `count` demonstrations of the given roles."""
    found: list[Demonstration] = []
    while len(found) < count:
        drawn = [shown for shown in family.demonstrations(rng, count) if shown.role in roles]
        if not drawn:
            raise TrainerRefusal(
                RefusalCode.NO_DEMONSTRATIONS, f"the environment has no demonstrations for {sorted(roles)}"
            )
        found += drawn
    return found[:count]


def _row(shown: Demonstration, codec: Codec) -> TrainRow:
    response = np.array(codec.ids_of(shown.reply.split()), "<i4")
    return TrainRow(
        prompt=np.array(codec.encode(shown.observation), "<i4").tobytes(),
        response=response.tobytes(),
        logprobs=np.zeros(len(response), "<f4").tobytes(),
        allowed=np.array(codec.ids_of(shown.allowed), "<i4").tobytes(),
        temperature=1.0,
        advantages=[1.0],
        weight=1.0,
    )
