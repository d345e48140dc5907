"""What lies in the memory of an engine and of a trainer at its peak: one part per cause.

Weights, gradients, masters, moments and what a reference holds are arithmetic of parameters. Caches and logits of an
engine, and what a pass of a trainer keeps, follow from the model's shape and from what the run asks for at once. What a
program and compiled kernels take was measured (docs/measurements/memory.md). Processors alone: on a GPU a pass has more
tokens, and nothing is compiled into its memory.
"""

import math
from collections.abc import Mapping, Sequence

from flexmarl.contracts.base import Record
from flexmarl.contracts.model_shapes import ModelShape
from flexmarl.contracts.model_sizes import FACTORY_SIZES, adapter_parameters, shape_of
from flexmarl.contracts.packaged_models import PACKAGED_MODELS
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel, Lora, PackageModel, PolicySpec, RegisteredModel
from flexmarl.simulator.prediction.memory_loads import PASS_TOKENS, MemoryLoad

HELD_VERSIONS = 2
"""Of a policy, by an engine: the newest, and the one that groups on their way may still name."""
_BYTES = {"fp32": 4, "fp64": 8, "bf16": 2}
_SERVED = {"fp32": 4, "fp64": 4, "bf16": 2}
"""Bytes of a weight as an engine computes with it."""
_VOCABULARY = 32
CHUNK_BYTES = 5 * 2**24
"""Of the scores of a chunk of tokens, in fp32: logits, their exponentials, and the gradient by them."""
KERNEL_BYTES = 13 * 2**23
"""Of what oneDNN compiles for the shapes of a model in bf16."""
SERVED_KERNELS = (0.0, 0.25, 1.0)
"""Share of it that an engine has: all on one processor that was measured, nothing on another."""
DRAW_BYTES = 21
"""Of a logit while a token is drawn: itself, its logarithm and exponential in fp32, their sum in fp64, and a mark."""
SPARE = 1.1
"""What the allocator holds for the pieces of a pass, over their bytes."""
PROGRAM = (0.28e9, 0.32e9, 0.38e9)
"""Interpreter and libraries, with the tokenizer."""
LIBRARY = (0.15e9, 0.2e9, 0.25e9)
"""What the transformers library adds to it."""
RANK = (0.6e9, 0.68e9, 0.76e9)
"""A process of vLLM that computes a part of one model."""
SCHEDULER = (0.5e9, 0.57e9, 0.65e9)
"""The engine's own process beside those; its devices share it."""
PARTS = {
    "program": "interpreter, libraries and tokenizer",
    "weights": "models, and every version of them that is kept",
    "reference": "the frozen versions that a policy is compared with",
    "optimizer": "gradient, masters and moments of the weights that are trained",
    "loading": "what reading a model takes beyond a step",
    "cache": "keys and values of replies in generation",
    "logits": "scores of the vocabulary, and the head in fp32",
    "activations": "what layers keep of each token of a pass",
    "kernels": "what is compiled for the shapes of a pass",
}


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


def engine(
    spec: ExperimentSpec, policies: Sequence[str], sizes: Mapping[str, int], asked: Mapping[str, MemoryLoad]
) -> DeviceMemory:
    """Return what each device of an engine holds that serves some policies: of several devices an equal part of
    weights and keys, the programs of its ranks with a share of the engine's own, and all logits."""
    if any(name not in sizes for name in policies):
        return DeviceMemory(use="engine", policies=tuple(policies), parts=())
    weights, bases, cache, logits, kernels = 0.0, set(), [0.0] * 3, [0.0] * 3, 0.0
    for name in policies:
        own, shape = spec.policies[name], shape_of(spec.policies[name].source)
        each, base, at_once = _SERVED[own.precision], _base(own), asked[name]
        joined = 0 if shape is None else shape.layers * shape.hidden * (shape.queries + 2 * shape.key_value)
        if isinstance(own.tuning, Lora):
            weights += HELD_VERSIONS * each * (0 if shape is None else _joined_adapter(shape, own.tuning))
        else:  # one more while it is loaded; keys, values and queries lie there once more, as one matrix
            weights += (HELD_VERSIONS + 1) * each * (sizes[name] + joined)
        if isinstance(own.tuning, Lora) and base not in bases:  # kept once, beneath all versions of its adapters
            bases.add(base)
            weights += each * (sizes[name] + joined)
        lies = [
            cached_bytes(own, sizes[name], *pair, spec.resources.engine_devices)
            for pair in zip(at_once.rows, at_once.positions, strict=True)
        ]
        cache = [so_far + more for so_far, more in zip(cache, lies, strict=True)]
        drawn = [_logit_bytes(own, shape, rows) for rows in at_once.rows]
        logits = [max(pair) for pair in zip(logits, drawn, strict=True)]  # one policy decodes at a time
        kernels = max(kernels, _kernel_bytes(own, sizes[name]))
    devices = spec.resources.engine_devices
    program = PROGRAM if devices == 1 else _of_ranks(spec, policies)
    parts = (
        _range("program", program), _exactly("weights", weights / devices), _range("cache", cache),
        _range("logits", logits), _range("kernels", [share * kernels for share in SERVED_KERNELS]),
    )  # fmt: skip
    return DeviceMemory(use="engine", policies=tuple(policies), parts=_present(parts))


def _of_ranks(spec: ExperimentSpec, policies: Sequence[str]) -> Sequence[float]:
    """Return what the programs of an engine of several devices take of each: a rank for each model, two of one whose
    weights are trained while two versions are served, and a share of the engine's own."""
    bases = {_base(spec.policies[name]) for name in policies if isinstance(spec.policies[name].tuning, Lora)}
    whole = sum(not isinstance(spec.policies[name].tuning, Lora) for name in policies)
    counts = (whole + len(bases), whole + len(bases), HELD_VERSIONS * whole + len(bases))
    devices = spec.resources.engine_devices
    return [rank * count + own / devices for rank, count, own in zip(RANK, counts, SCHEDULER, strict=True)]


def trainer(
    spec: ExperimentSpec, policies: Sequence[str], sizes: Mapping[str, int], asked: Mapping[str, MemoryLoad]
) -> DeviceMemory:
    """Return what a trainer holds of the policies that it trains."""
    if any(name not in sizes for name in policies):
        return DeviceMemory(use="trainer", policies=tuple(policies), parts=())
    weights = optimizer = reference = loading = kernels = 0.0
    activations, beneath = [0.0] * 3, set()
    for name in policies:
        own, size = spec.policies[name], sizes[name]
        ranks, adapter, each = max(1, own.devices.least), isinstance(own.tuning, Lora), _BYTES[own.precision]
        trained, base = _trained(own, size), _base(own)
        if not adapter or base not in beneath:  # adapters over one model share it
            weights += each * size / ranks
        if adapter:
            beneath.add(base)
            weights += each * trained / ranks
            loading = max(loading, each * size)  # as it is published, while it is copied
        optimizer += beside_weights(own) * trained / ranks
        reference += spec.algorithm.most_compared * each * trained / ranks
        lies = [pass_bytes(own, tokens, size) for tokens in asked[name].tokens]
        activations = [max(pair) for pair in zip(activations, lies, strict=True)]  # one policy computes at a time
        kernels = max(kernels, _kernel_bytes(own, size))
    program: Sequence[float] = PROGRAM
    if any(spec.policies[name].trainer == "transformers" for name in policies):
        program = tuple(own + more for own, more in zip(PROGRAM, LIBRARY, strict=True))
    beyond = [max(0.0, loading - held) for held in activations]
    parts = (
        _range("program", program), _exactly("weights", weights), _exactly("reference", reference),
        _exactly("optimizer", optimizer), _range("activations", activations), _range("loading", beyond),
        _exactly("kernels", kernels),
    )  # fmt: skip
    return DeviceMemory(use="trainer", policies=tuple(policies), parts=_present(parts))


def _trained(policy: PolicySpec, parameters: int) -> int:
    return (adapter_parameters(policy) or 0) if isinstance(policy.tuning, Lora) else parameters


def _base(policy: PolicySpec) -> tuple[str, str, str]:
    """Name what adapters may lie over: policies that agree on it share it."""
    return policy.source.model_dump_json(), policy.precision, policy.trainer


def beside_weights(policy: PolicySpec) -> int:
    """Return the bytes of each trained weight beside itself: in bf16 a master, its gradient and two moments, in fp32;
    otherwise two moments, the sum of gradients and that of the micro-batch."""
    return 4 * max(4, _BYTES[policy.precision])


def cached_bytes(policy: PolicySpec, parameters: int, rows: float, positions: float, devices: int = 1) -> float:
    """Return what each device of an engine keeps of replies in generation: keys and values of every position of every
    row, of its part of the heads."""
    each, shape = _SERVED[policy.precision], shape_of(policy.source)
    if shape is None:
        return 0.3 * each * parameters / devices
    key_value = -(-shape.kv_heads // devices) * shape.head_size
    return 2 * shape.layers * key_value * each * _row_room(rows) * _position_room(positions)


def _row_room(rows: float) -> int:
    """Return for how many rows a cache has room: it grows by doubling."""
    return max(8, 1 << (math.ceil(rows) - 1).bit_length())


def _position_room(positions: float) -> int:
    return 64 * math.ceil(positions / 64)


def _logit_bytes(policy: PolicySpec, shape: ModelShape | None, rows: float) -> float:
    if shape is None:
        return 0.0
    words = shape.vocabulary or _VOCABULARY
    return words * (DRAW_BYTES * rows + (4 * shape.hidden if policy.precision == "bf16" else 0))


def _joined_adapter(shape: ModelShape, lora: Lora) -> int:
    """Count the numbers of an adapter as an engine holds it: factors of neighbouring matrices side by side."""
    found = 0
    for targets in (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)):
        adapted = [target for target in targets if target in lora.targets]
        rank = 16 * math.ceil(len(adapted) * lora.rank / 16)
        found += rank * (shape.sides(targets[0])[1] + sum(shape.sides(target)[0] for target in targets))
    return shape.layers * found


def _kernel_bytes(policy: PolicySpec, parameters: int) -> float:
    return min(KERNEL_BYTES, 2 * parameters) if policy.precision == "bf16" else 0


def pass_bytes(policy: PolicySpec, tokens: float, parameters: int) -> float:
    """Return what a forward and backward pass over some tokens keeps beside weights and their gradient."""
    each, shape = _BYTES[policy.precision], shape_of(policy.source)
    if shape is None:
        share = 0.5 if policy.activations == "recompute" else 2.0
        return share * each * parameters * tokens / PASS_TOKENS
    layer = _layer_bytes(shape, each, policy.trainer == "transformers")
    whole = shape.layers * shape.hidden * each + layer if policy.activations == "recompute" else shape.layers * layer
    words = shape.vocabulary or _VOCABULARY
    tables = 0 if isinstance(policy.tuning, Lora) else words * shape.hidden * (8 + 2 * each)
    return SPARE * whole * tokens + tables + min(CHUNK_BYTES, 20 * tokens * words)


def _layer_bytes(shape: ModelShape, each: int, library: bool) -> int:
    """Count what a layer keeps of a token: its input and that of the MLP, both normed as well; queries, keys, values,
    the latter two once more for all heads, what attention made of them, twice; gate, up, and their product. The
    library's layers keep both inputs in fp32 too, and what the activation function makes of the gate."""
    own = (4 * shape.hidden + 5 * shape.queries + 2 * shape.key_value + 3 * shape.mlp) * each
    return own + (8 * shape.hidden + shape.mlp * each if library else 0)


def _exactly(name: str, count: float) -> MemoryPart:
    return MemoryPart(name=name, low=count, likely=count, high=count)


def _range(name: str, found: Sequence[float]) -> MemoryPart:
    low, likely, high = found
    return MemoryPart(name=name, low=low, likely=likely, high=high)


def _present(parts: Sequence[MemoryPart]) -> tuple[MemoryPart, ...]:
    return tuple(part for part in parts if part.high)
