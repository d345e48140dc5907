"""The learning kit over every plug-in of each kind: a new one is checked as soon as it is registered."""

import pytest

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.aggregation import AGGREGATIONS
from flexmarl.algorithms.filters import GROUP_FILTERS
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.shaping import SHAPERS
from flexmarl.contracts.plugins import Readiness
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.algorithm import AlgorithmSpec, ReferenceKl
from flexmarl.contracts.specification.corrections import CORRECTION
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.shaping import (
    MajorityVoteOptions,
    MaporlOptions,
    MartiOptions,
    NoShapingOptions,
    OverlongOptions,
)
from flexmarl.contracts.specification.task_choice import GROUP_FILTER
from tests.conformance import learning_kit as kit
from workers.training.losses import CORRECTIONS, KL_ESTIMATORS, LOSSES
from workers.training.objective import Objective

SETTINGS = {"ppo_clip": {"dual_clip": 3.0}, "gspo": {"clip_low": 0.05, "clip_high": 0.05}}
"""Where defaults would leave something out."""
SHAPINGS = {
    "none": NoShapingOptions(),
    "overlong": OverlongOptions(),
    "marti": MartiOptions(),
    "maporl": MaporlOptions(),
    "majority_vote": MajorityVoteOptions(),
}


def objective(loss: str, correction: str = "none", aggregation: str = "token_mean", level: str = "token") -> Objective:
    average = {} if LOSS.variants()[loss].paired else {"aggregation": aggregation}
    settings = LOSS.options(loss, **average, **SETTINGS.get(loss, {}))
    leveled = {"level": level} if "level" in CORRECTION.variants()[correction].model_fields else {}
    made = Objective.of(settings, AlgorithmSpec(loss=settings, correction=CORRECTION.options(correction, **leveled)))
    return seen(made)


def seen(made: Objective) -> Objective:
    """Return what has seen a micro-batch, where it compares all rows of one, so that it is the same of every part."""
    made = made.compared([kit.rows_of(kit.draw(1))])
    return made.surveyed([kit.rows_of(kit.draw(1))]) if made.surveys else made


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
@pytest.mark.parametrize("loss", LOSSES.names())
def test_losses(loss: str, aggregation: str):
    kit.check_objective(objective(loss, aggregation=aggregation))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", CORRECTIONS.names())
def test_corrections(correction: str, level: str):
    kit.check_objective(objective("policy_gradient", correction, level=level))
    if not CORRECTION.variants()[correction].weighs:
        for loss in LOSSES.names():
            kit.check_objective(objective(loss, correction, "seq_mean_token_mean", level))


@pytest.mark.parametrize("loss", LOSSES.names())
@pytest.mark.parametrize("estimator", sorted(KL_ESTIMATORS))
def test_penalties_for_leaving_a_reference(estimator: str, loss: str):
    settings = objective(loss).loss.options
    kl = ReferenceKl(coefficient=0.3, estimator=estimator)
    kit.check_objective(seen(Objective.of(settings, AlgorithmSpec(loss=settings, kl=kl))))


@pytest.mark.parametrize("key", sorted(GROUP_KEYS))
@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_advantages(name: str, key: str):
    need = ADVANTAGE.variants()[name].needs
    compared = Readiness.GROUP if need is Readiness.GROUP else Readiness.EPISODE
    kit.check_estimator(name, GROUP_KEYS[key], compared, apart=key != "team")


@pytest.mark.parametrize("name", SHAPERS.names())
def test_shapers(name: str):
    kit.check_shaper(SHAPERS.make(SHAPINGS[name]))


@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_normalisers(name: str):
    kit.check_normaliser(ADVANTAGES.make(ADVANTAGE.options(name)).normalise)


@pytest.mark.parametrize("name", GROUP_FILTERS.names())
def test_filters(name: str):
    kit.check_filter(GROUP_FILTERS.make(GROUP_FILTER.options(name)))


@pytest.mark.parametrize("loss", LOSSES.names())
def test_neutral_corrections_change_nothing(loss: str):
    """An off switch: limits that nothing reaches leave the loss as it is."""
    drawn = kit.draw(10)
    plain = kit.take(objective(loss), drawn)
    settings = objective(loss).loss.options
    for correction in (
        CORRECTION.options("sequence_filter", floor=0.0, limit=1000.0),
        CORRECTION.options("off_policy_filter", floor=0.0),
        CORRECTION.options("mask_stale", stale_after=64),
        CORRECTION.options("second_moment", moment_limit=400.0),
    ):
        neutral = Objective.of(settings, AlgorithmSpec(loss=settings, correction=correction))
        found = kit.take(seen(neutral), drawn)
        assert found.value == plain.value
        assert found.gradient.equal(plain.gradient)
