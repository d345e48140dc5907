"""A model of the transformers library without its weights, and which of a folder's weights each of its parameters is.

Weights go by the names of files, as folders, engines and other tools know them. The library may hold several of them as
one parameter, such as all experts of a layer: lying behind each other in memory, they are that parameter. How a
model's parameters are saved is asked of the library itself, with numbers for weights, so nothing here knows a family.

Invariants: no parameter has memory; each weight is part of one parameter; a model of which some tensor is no weight
(a statistic), or whose parameters are no plain stacks of what is saved, is refused by name.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from workers.models.errors import UnsupportedModel
from workers.models.families import LibraryModel, library_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Stack:
    """A parameter, and the weights it is made of, in their order in memory."""

    parameter: str
    shape: tuple[int, ...]
    weights: tuple[str, ...]


def library_order(model: LibraryModel, weights: Shapes) -> list[str]:
    """Return the names of weights so that those of one parameter are neighbours. Raises UnsupportedModel.

    The order depends on the names alone, so that what is stored in it is read by another release of the library too.
    """
    stacks = sorted(stacks_of(model, words_of(weights)), key=lambda stack: min(stack.weights))
    names = [name for stack in stacks for name in stack.weights]
    strange, missing = sorted(weights.keys() - set(names)), sorted(set(names) - weights.keys())
    if strange or missing:
        raise UnsupportedModel(f"the model of config.json has no {strange[:3]} and misses {missing[:3]}")
    for stack in stacks:
        found = sum(_size(weights[name]) for name in stack.weights)
        if found != _size(stack.shape):
            text = f"config.json says {stack.shape} of {stack.parameter}, the weights have {found} numbers for it"
            raise UnsupportedModel(f"{text}; use the configuration that belongs to the weights")
    return names


def words_of(weights: Shapes) -> int:
    """Return the vocabulary of weights whose configuration does not say it: a factory model's."""
    return weights.get("model.embed_tokens.weight", (0,))[0]


@lru_cache(maxsize=8)
def stacks_of(model: LibraryModel, words: int) -> tuple[Stack, ...]:
    """Return the parameters of a model. Raises UnsupportedModel."""
    built = skeleton(model, words, "fp32")
    parameters = {name: tuple(tensor.shape) for name, tensor in built.named_parameters()}
    loose = [name for name, _ in built.named_buffers()]
    kept = {name for name, _ in built.named_non_persistent_buffers()}
    if statistics := [name for name in loose if name not in kept]:
        raise UnsupportedModel(f"{_kind(built)} has tensors that are not trained by gradients: {statistics[:3]}")
    return tuple(_stacks(built, parameters))


def skeleton(model: LibraryModel, words: int, precision: str) -> "PreTrainedModel":
    """Return the model with parameters that have shapes alone; its tables are there. Raises UnsupportedModel."""
    import torch
    from transformers import AutoModelForCausalLM

    config = library_config(model, words)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedModel(f"model_type {config.model_type!r} is not a causal language model; choose one that is")
    dtype = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}[precision]
    maker: Any = AutoModelForCausalLM
    experts = {"experts_implementation": "eager"} if precision == "fp64" else {}  # the grouped product knows no fp64
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            built: PreTrainedModel = maker.from_config(config, dtype=dtype, trust_remote_code=False, **experts)
    except Exception as error:  # a model's class raises what its modules raise
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise UnsupportedModel(f"config.json does not describe a model: {said}") from error
    _fill_tables(built)
    built.train(False)
    return built


def _fill_tables(built: Any) -> None:
    """Compute what is no parameter and in no file, such as the frequencies of rotary positions."""
    import torch

    for name, table in list(built.named_non_persistent_buffers()):
        owner, _, own = name.rpartition(".")
        built.get_submodule(owner)._buffers[own] = torch.empty_like(table, device="cpu")
    with torch.random.fork_rng(devices=[]):
        built.initialize_weights()  # of parameters without memory it changes nothing


def _stacks(built: Any, parameters: Shapes) -> Iterator[Stack]:
    """Save parameters that hold numbers instead of weights, and see where each number went."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    shapes = {name: _numbered_shape(shape) for name, shape in parameters.items()}
    names, starts = list(shapes), list(accumulate((_size(shape) for shape in shapes.values()), initial=0))
    numbers = torch.arange(starts[-1], dtype=torch.int32)
    asked = {
        name: numbers[start : start + _size(shape)].view(shape)
        for (name, shape), start in zip(shapes.items(), starts, strict=False)
    }
    try:
        saved = revert_weight_conversion(built, asked)
    except Exception as error:  # a conversion that only knows real weights
        raise UnsupportedModel(f"{_kind(built)}: how its weights are saved is not known: {error}") from error
    parts: dict[str, list[tuple[int, str, int]]] = {name: [] for name in names}
    for weight, told in saved.items():
        flat = told.flatten()
        first = int(flat[0])
        if not torch.equal(flat, torch.arange(first, first + flat.numel(), dtype=torch.int32)):
            raise UnsupportedModel(f"{_kind(built)} holds {weight} in another order than it is saved in")
        parts[names[bisect_right(starts, first) - 1]].append((first, weight, flat.numel()))
    for name, start in zip(names, starts, strict=False):
        yield Stack(name, parameters[name], _neighbours(built, name, start, _size(shapes[name]), parts[name]))


def _neighbours(built: Any, name: str, start: int, size: int, parts: Sequence[tuple[int, str, int]]) -> tuple[str, ...]:
    at = start
    for first, _, length in sorted(parts):
        if first != at:
            break
        at += length
    if at != start + size:
        raise UnsupportedModel(f"{_kind(built)}: {name} is not a stack of the weights that are saved of it")
    return tuple(weight for _, weight, _ in sorted(parts))


def _numbered_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a smaller shape in which any other order than the saved one still shows."""
    whole = 2 if len(shape) > 2 else 1
    return (*shape[:whole], *(min(side, 2) for side in shape[whole:]))


def _size(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


def _kind(built: Any) -> str:
    return f"model_type {built.config.model_type!r}"
