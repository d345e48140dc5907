"""What lies in the memory of an engine and of a trainer, from the parameters of their policies.

Weights, gradients, masters and moments are arithmetic. Activations are what layers keep of each token of a pass,
where the model's shape is known, by the tokens of a pass; attention caches are a range, and so is the program itself.
"""

from collections.abc import Mapping, Sequence

from flexmarl.contracts.base import Record
from flexmarl.contracts.model_shapes import ModelShape
from flexmarl.contracts.model_sizes import FACTORY_SIZES, adapter_parameters, shape_of
from flexmarl.contracts.packaged_models import PACKAGED_MODELS
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel, Lora, PackageModel, PolicySpec, RegisteredModel

HELD_VERSIONS = 2
"""Of a policy, by an engine: the newest, and the one that groups on their way may still name."""
_BYTES = {"fp32": 4, "fp64": 8, "bf16": 2}
_VOCABULARY = 32
PASS_TOKENS = (256, 1024, 2048)
"""Of a forward pass on a CPU: few rows, some, and as many as there may be."""
CHUNK_BYTES = 5 * 2**24
"""Of the scores of a chunk of tokens, in fp32: logits, their exponentials, and the gradient by them."""
KERNEL_BYTES = 13 * 2**23
"""Of what oneDNN compiles for the shapes of a model in bf16."""
SPARE = 1.1
"""What the allocator holds for the pieces of a pass, over their bytes."""
PROGRAM = (0.2e9, 0.35e9, 0.5e9)
"""Interpreter and libraries."""


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
    """Return the parameters of every policy whose model is known. `measured` are what its trainer counted in a run: of
    a model that only a host can read, and, of an adapter, not those of its base."""
    found = {}
    for name, policy in spec.policies.items():
        if isinstance(policy.source, FactoryModel):
            size = FACTORY_SIZES[policy.source.size]
            layer = 4 * size.hidden**2 + 3 * size.hidden * size.mlp + 5 * size.hidden
            found[name] = size.layers * layer + (_VOCABULARY + 1) * size.hidden
        elif isinstance(policy.source, PackageModel):
            found[name] = PACKAGED_MODELS[policy.source.name].parameters
        elif isinstance(policy.source, RegisteredModel) and policy.source.parameters:
            found[name] = policy.source.parameters
        elif name in measured and not isinstance(policy.tuning, Lora):
            found[name] = measured[name]
    return found


def engine(spec: ExperimentSpec, policies: Sequence[str], sizes: Mapping[str, int]) -> DeviceMemory:
    """Return what an engine holds that serves some policies."""
    if any(name not in sizes for name in policies):
        return DeviceMemory(use="engine", policies=tuple(policies), parts=())
    weights, bases = 0.0, set()
    for name in policies:
        own = spec.policies[name]
        trained, base = _trained(own, sizes[name]), _base(own)
        weights += HELD_VERSIONS * _BYTES[own.precision] * trained
        if isinstance(own.tuning, Lora) and base not in bases:  # kept once, beneath all versions of its adapters
            bases.add(base)
            weights += _BYTES[own.precision] * sizes[name]
    cache = MemoryPart(name="cache", low=0.1 * weights, likely=0.3 * weights, high=weights)
    return DeviceMemory(use="engine", policies=tuple(policies), parts=(_exactly("weights", weights), cache, _PROGRAM))


def trainer(spec: ExperimentSpec, policies: Sequence[str], sizes: Mapping[str, int]) -> DeviceMemory:
    """Return what a trainer holds of the policies that it trains."""
    if any(name not in sizes for name in policies):
        return DeviceMemory(use="trainer", policies=tuple(policies), parts=())
    weights = optimizer = 0.0
    activations = [0.0, 0.0, 0.0]
    beneath = set()
    for name in policies:
        own = spec.policies[name]
        ranks, adapter = max(1, own.devices.least), isinstance(own.tuning, Lora)
        trained, base = _trained(own, sizes[name]), _base(own)
        if not adapter or base not in beneath:  # adapters over one model share it
            weights += _BYTES[own.precision] * sizes[name] / ranks
        if adapter:
            beneath.add(base)
            weights += _BYTES[own.precision] * trained / ranks
        optimizer += beside_weights(own) * trained / ranks
        ends = [pass_bytes(own, tokens, sizes[name]) for tokens in PASS_TOKENS]
        activations = [max(pair) for pair in zip(activations, ends, strict=True)]  # one policy computes at a time
    low, likely, high = activations
    kept = MemoryPart(name="activations", low=low, likely=likely, high=high)
    parts = (_exactly("weights", weights), _exactly("optimizer", optimizer), kept, _PROGRAM)
    return DeviceMemory(use="trainer", policies=tuple(policies), parts=parts)


def _trained(policy: PolicySpec, parameters: int) -> int:
    return (adapter_parameters(policy) or 0) if isinstance(policy.tuning, Lora) else parameters


def _base(policy: PolicySpec) -> tuple[str, str, str]:
    """Name what adapters may lie over: policies that agree on it share it."""
    return policy.source.model_dump_json(), policy.precision, policy.trainer


def beside_weights(policy: PolicySpec) -> int:
    """Return the bytes of each trained weight beside itself: in bf16 a master, its gradient and two moments, in fp32;
    otherwise two moments, the sum of gradients and that of the micro-batch."""
    return 4 * max(4, _BYTES[policy.precision])


def pass_bytes(policy: PolicySpec, tokens: int, parameters: int) -> float:
    """Return what a forward and backward pass over some tokens keeps beside weights and their gradient."""
    each, shape = _BYTES[policy.precision], shape_of(policy.source)
    if shape is None:
        share = 0.5 if policy.activations == "recompute" else 2.0
        return share * each * parameters * tokens / PASS_TOKENS[-1]
    layer = _layer_bytes(shape, each, policy.trainer == "transformers")
    whole = shape.layers * shape.hidden * each + layer if policy.activations == "recompute" else shape.layers * layer
    words = shape.vocabulary or _VOCABULARY
    tables = 0 if isinstance(policy.tuning, Lora) else words * shape.hidden * (8 + 2 * each)
    kernels = min(KERNEL_BYTES, each * parameters) if policy.precision == "bf16" else 0
    return SPARE * whole * tokens + tables + min(CHUNK_BYTES, 20 * tokens * words) + kernels


def _layer_bytes(shape: ModelShape, each: int, library: bool) -> int:
    """Count what a layer keeps of a token: its input and that of the MLP, both normed as well; queries, keys, values,
    the latter two once more for all heads, what attention made of them, twice; gate, up, and their product. The
    library's layers keep both inputs in fp32 too, and what the activation function makes of the gate."""
    own = (9 * shape.hidden + 2 * shape.key_value + 3 * shape.mlp) * each
    return own + (8 * shape.hidden + shape.mlp * each if library else 0)


def _exactly(name: str, count: float) -> MemoryPart:
    return MemoryPart(name=name, low=count, likely=count, high=count)


_PROGRAM = MemoryPart(name="program", low=PROGRAM[0], likely=PROGRAM[1], high=PROGRAM[2])
