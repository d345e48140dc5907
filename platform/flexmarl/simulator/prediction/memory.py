"""What lies in the memory of an engine and of a trainer, from the parameters of their policies.

Weights, gradients, masters and moments are arithmetic; attention caches and activations are ranges.
"""

from collections.abc import Mapping, Sequence

from flexmarl.contracts.base import Record
from flexmarl.contracts.model_sizes import FACTORY_SIZES, adapter_parameters
from flexmarl.contracts.packaged_models import PACKAGED_MODELS
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel, PackageModel, RegisteredModel

HELD_VERSIONS = 2
"""Of a policy, by an engine: the newest, and the one that groups on their way may still name."""
_BYTES = {"fp32": 4, "fp64": 8, "bf16": 2}
_VOCABULARY = 32


class MemoryPart(Record):
    name: str
    low: float
    likely: float
    high: float


class DeviceMemory(Record):
    """Bytes on one device; `parts` is empty where a model's size is not known."""

    use: str
    policies: tuple[str, ...]
    parts: tuple[MemoryPart, ...]

    def total(self, end: str) -> float:
        """Return one end of the sum."""
        return float(sum(getattr(part, end) for part in self.parts))


def parameters_of(spec: ExperimentSpec, measured: Mapping[str, int]) -> dict[str, int]:
    """Return the parameters of every policy whose model is known."""
    found = {}
    for name, policy in spec.policies.items():
        if name in measured:
            found[name] = measured[name]
        elif isinstance(policy.source, FactoryModel):
            size = FACTORY_SIZES[policy.source.size]
            layer = 4 * size.hidden**2 + 3 * size.hidden * size.mlp + 5 * size.hidden
            found[name] = size.layers * layer + (_VOCABULARY + 1) * size.hidden
        elif isinstance(policy.source, PackageModel):
            found[name] = PACKAGED_MODELS[policy.source.name].parameters
        elif isinstance(policy.source, RegisteredModel) and policy.source.parameters:
            found[name] = policy.source.parameters
    return found


def engine(spec: ExperimentSpec, policies: Sequence[str], sizes: Mapping[str, int]) -> DeviceMemory:
    """Return what an engine holds that serves some policies."""
    if any(name not in sizes for name in policies):
        return DeviceMemory(use="engine", policies=tuple(policies), parts=())
    weights = sum(HELD_VERSIONS * _BYTES[spec.policies[name].precision] * sizes[name] for name in policies)
    cache = MemoryPart(name="cache", low=0.1 * weights, likely=0.3 * weights, high=weights)
    return DeviceMemory(use="engine", policies=tuple(policies), parts=(_exactly("weights", weights), cache))


def trainer(spec: ExperimentSpec, policies: Sequence[str], sizes: Mapping[str, int]) -> DeviceMemory:
    """Return what a trainer holds of the policies that it trains."""
    if any(name not in sizes for name in policies):
        return DeviceMemory(use="trainer", policies=tuple(policies), parts=())
    weights = optimizer = 0.0
    for name in policies:
        own = spec.policies[name]
        ranks, wide = max(1, own.devices.least), max(4, _BYTES[own.precision])
        trained = adapter_parameters(own) or sizes[name]
        weights += _BYTES[own.precision] * sizes[name] / ranks
        masters = 4 if own.precision == "bf16" else 0
        optimizer += trained * (wide + 2 * wide + masters) / ranks  # gradient, two moments
    low, likely, high = (0.1, 0.3, 0.6) if all(_recomputes(spec, n) for n in policies) else (0.25, 0.75, 2.0)
    activations = MemoryPart(name="activations", low=low * weights, likely=likely * weights, high=high * weights)
    parts = (_exactly("weights", weights), _exactly("optimizer", optimizer), activations)
    return DeviceMemory(use="trainer", policies=tuple(policies), parts=parts)


def _exactly(name: str, count: float) -> MemoryPart:
    return MemoryPart(name=name, low=count, likely=count, high=count)


def _recomputes(spec: ExperimentSpec, policy: str) -> bool:
    return spec.policies[policy].activations == "recompute"
