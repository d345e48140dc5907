"""Sizes of the models that the project makes itself, and what an adapter of them holds."""

from dataclasses import dataclass

from flexmarl.contracts.model_shapes import ModelShape
from flexmarl.contracts.packaged_models import PACKAGED_MODELS
from flexmarl.contracts.specification.team import (
    FactoryModel,
    Lora,
    OwnSource,
    PackageModel,
    PolicySpec,
    RegisteredModel,
)


@dataclass(frozen=True, slots=True)
class FactorySize(ModelShape):
    init_std: float
    """About 1/sqrt(hidden): with the usual 0.02 a tiny random policy stays at chance."""


FACTORY_SIZES = {
    "S": FactorySize(hidden=64, layers=2, mlp=128, heads=4, kv_heads=4, vocabulary=0, init_std=0.15),
    "M": FactorySize(hidden=128, layers=2, mlp=256, heads=4, kv_heads=4, vocabulary=0, init_std=0.09),
}


def shape_of(source: OwnSource) -> ModelShape | None:
    """Return the shape of a model; None where it is known only to whoever reads it."""
    if isinstance(source, FactoryModel):
        return FACTORY_SIZES[source.size]
    if isinstance(source, RegisteredModel):
        return source.shape
    return PACKAGED_MODELS[source.name].shape if isinstance(source, PackageModel) else None


def adapter_parameters(policy: PolicySpec) -> int | None:
    """Count what a policy's adapter trains. None: it has none, or its model is known only where it is read."""
    size = shape_of(policy.source)
    if not isinstance(policy.tuning, Lora) or size is None:
        return None
    return size.layers * policy.tuning.rank * sum(sum(size.sides(target)) for target in policy.tuning.targets)
