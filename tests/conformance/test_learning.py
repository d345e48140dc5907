"""The learning kit over every plug-in of each kind: a new one is checked as soon as it is registered."""

import pytest

from flexmarl.algorithms.advantages import ADVANTAGES, NORMALISERS
from flexmarl.algorithms.aggregation import AGGREGATIONS
from flexmarl.algorithms.filters import GROUP_FILTERS
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.shaping import SHAPERS
from flexmarl.contracts.readiness import ADVANTAGE_NEEDS, Readiness
from flexmarl.contracts.spec.algorithm import WEIGHTING, AlgorithmSpec, Loss, ReferenceKl
from flexmarl.contracts.spec.shaping import Maporl, Marti, NoShaping, Overlong
from tests.conformance import learning_kit as kit
from workers.training.losses import CORRECTIONS, KL_ESTIMATORS, REGISTRY
from workers.training.objective import Objective

SETTINGS = {"ppo_clip": {"dual_clip": 3.0}, "gspo": {"clip_low": 0.05, "clip_high": 0.05}}
"""Where defaults would leave something out."""
SHAPINGS = {"none": NoShaping(), "overlong": Overlong(), "marti": Marti(), "maporl": Maporl()}


def objective(loss: str, correction: str = "none", aggregation: str = "token_mean", level: str = "token") -> Objective:
    settings = Loss(type=loss, aggregation=aggregation, **SETTINGS.get(loss, {}))
    return Objective.of(settings, AlgorithmSpec(loss=settings, correction=correction, importance_level=level))


@pytest.mark.parametrize("aggregation", AGGREGATIONS.names())
@pytest.mark.parametrize("loss", REGISTRY.names())
def test_losses(loss: str, aggregation: str):
    kit.check_objective(objective(loss, aggregation=aggregation))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", CORRECTIONS.names())
def test_corrections(correction: str, level: str):
    kit.check_objective(objective("policy_gradient", correction, level=level))
    if correction not in WEIGHTING:
        for loss in REGISTRY.names():
            kit.check_objective(objective(loss, correction, "seq_mean_token_mean", level))


@pytest.mark.parametrize("loss", REGISTRY.names())
@pytest.mark.parametrize("estimator", KL_ESTIMATORS.names())
def test_penalties_for_leaving_a_reference(estimator: str, loss: str):
    settings = objective(loss).settings
    kl = ReferenceKl(coefficient=0.3, estimator=estimator)
    kit.check_objective(Objective.of(settings, AlgorithmSpec(loss=settings, kl=kl)))


@pytest.mark.parametrize("key", GROUP_KEYS.names())
@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_advantages(name: str, key: str):
    need = ADVANTAGE_NEEDS[name]
    compared = Readiness.GROUP if need is Readiness.GROUP else Readiness.EPISODE
    kit.check_estimator(ADVANTAGES.get(name), GROUP_KEYS.get(key), compared, apart=key != "team")


@pytest.mark.parametrize("name", SHAPERS.names())
def test_shapers(name: str):
    kit.check_shaper(SHAPERS.get(name), SHAPINGS[name])


@pytest.mark.parametrize("name", NORMALISERS.names())
def test_normalisers(name: str):
    kit.check_normaliser(NORMALISERS.get(name))


@pytest.mark.parametrize("name", GROUP_FILTERS.names())
def test_filters(name: str):
    kit.check_filter(GROUP_FILTERS.get(name))


@pytest.mark.parametrize("loss", REGISTRY.names())
def test_neutral_corrections_change_nothing(loss: str):
    """An off switch: limits that nothing reaches leave the loss as it is."""
    drawn = kit.draw(10)
    same = {"importance_floor": 0.0, "importance_limit": 1000.0, "stale_after": 64}
    plain = kit.take(objective(loss), drawn)
    settings = objective(loss).settings
    for correction in ("sequence_filter", "off_policy_filter", "mask_stale"):
        found = kit.take(Objective.of(settings, AlgorithmSpec(loss=settings, correction=correction, **same)), drawn)
        assert found.value == plain.value
        assert found.gradient.equal(plain.gradient)
