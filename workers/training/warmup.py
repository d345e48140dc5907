"""Supervised warm-up: cross-entropy on demonstrations before version 0 is committed.

It is the policy gradient with advantage 1 and without entropy bonus, on what is shown: replies of a perfect team, or an
assistant's turns in conversations. The optimizer of the run starts fresh afterwards.
"""

import random
import time
from collections.abc import Collection
from typing import Any, Protocol

import numpy as np

from flexmarl.contracts.specification.demonstrations import SupervisedWarmup
from flexmarl.contracts.specification.losses import PolicyGradientOptions
from workers.rollout.environments.base import Demonstration, Family
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.learner import Learner
from workers.training.objective import Objective
from workers.training.wire import TrainRow
from workers.vocabulary import Codec


class Demonstrations(Protocol):
    """What a warm-up learns from."""

    def draw(self, count: int) -> list[TrainRow]:
        """Return the rows of the next `count` demonstrations. Raises TrainerRefusal where there are none."""

    def facts(self) -> dict[str, float]:
        """Return what was drawn so far, in figures."""


def warm_up(learner: Learner, settings: SupervisedWarmup, shown: Demonstrations) -> dict[str, float]:
    """Take up to `steps` steps within `max_seconds`, at least one; return the facts of what was done.

    A loss is the mean cross-entropy of a token, before the step that is taken on it.
    """
    began = time.perf_counter()
    objective = Objective.of(PolicyGradientOptions(aggregation="token_mean"))
    losses: list[float] = []
    tokens = 0
    while len(losses) < settings.steps and (not losses or time.perf_counter() - began < settings.max_seconds):
        gradient, stats = learner.gradient(shown.draw(settings.batch_size), 0.0, objective)
        learner.descend(gradient, stats.z, settings.learning_rate)
        losses.append(stats.loss_sum / stats.z)
        tokens += stats.tokens
    learner.optimizer.reset()
    learner.accumulator.open(learner.accumulator.epoch)  # its memory may be the one that the gradients were in
    return {
        "warmup_steps": len(losses),
        "warmup_seconds": time.perf_counter() - began,
        "warmup_tokens": tokens,
        "warmup_loss_first": losses[0],
        "warmup_loss_last": losses[-1],
        **shown.facts(),
    }


class EnvironmentReplies:
    """Replies that an environment shows to some of its roles."""

    def __init__(self, family: Family[Any], roles: Collection[str], codec: Codec, rng: random.Random) -> None:
        self._family, self._roles, self._codec, self._rng = family, roles, codec, rng

    def draw(self, count: int) -> list[TrainRow]:
        """Return the rows of `count` demonstrations for the roles."""
        found: list[Demonstration] = []
        while len(found) < count:
            drawn = [shown for shown in self._family.demonstrations(self._rng, count) if shown.role in self._roles]
            if not drawn:
                raise TrainerRefusal(
                    RefusalCode.NO_DEMONSTRATIONS, f"the environment has no demonstrations for {sorted(self._roles)}"
                )
            found += drawn
        return [_row(shown, self._codec) for shown in found[:count]]

    def facts(self) -> dict[str, float]:
        """Return nothing: each draw is made anew."""
        return {}


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
