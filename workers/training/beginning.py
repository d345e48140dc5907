"""What a policy's version 0 is made of: drawn anew, read from a folder, or another run's version.

Invariants: weights that are taken over are checked, name by name and shape by shape, against the model they are said to
be of, and so is the tokenizer: a policy never begins with weights of another model, of other words or of an adapter of
another kind. What is taken over is the same content, so it keeps its digest. Every refusal names the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import DECODING, FactoryModel, FolderModel, Lora, PolicySpec, RegisteredModel
from workers.models import UnsupportedModel, architecture_of, tokenizer_of
from workers.models.adapter import WrongAdapterError, check_adapter, initial_adapter, no_adapter
from workers.models.architecture import Architecture
from workers.models.checks import check_weights
from workers.models.families import shape_of
from workers.models.folders import read_adapter
from workers.models.inspecting import check_kind, inspect
from workers.models.places import folder_of
from workers.models.tokenizer import Spoken, folder_spoken
from workers.models.weights import initial_weights
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.exported_rows import check_archive
from workers.training.version_store import VersionStore
from workers.training.wire import BindRequest

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Beginning:
    weights: "Weights"
    state: "Weights | None" = None
    """Training state that goes on; None: the optimizer is fresh."""
    taken: bool = False
    """It is another run's version."""


def beginning_of(
    spec: ExperimentSpec, asked: BindRequest, words: int, tokenizer: bytes, store: VersionStore
) -> Beginning:
    """Return what version 0 of a policy begins with. Raises TrainerRefusal, UnsupportedModel or WrongAdapterError."""
    check_archive(spec, asked.policy, tokenizer)
    if not asked.digest:
        return Beginning(_first_weights(spec, asked.policy, words, store))
    own = sha256(tokenizer).hexdigest()
    if asked.tokenizer not in ("", own):
        detail = (
            f"policies.{asked.policy}.model: its tokenizer is {own[:12]}, that of the weights it shall begin with is "
            f"{asked.tokenizer[:12]}; keep the environment and the model as they are in the run they come from"
        )
        raise TrainerRefusal(RefusalCode.TOKENIZER_DIFFERS, detail)
    weights = _taken_over(spec, asked, store)
    state = store.state(asked.state, asked.digest) if asked.state else None
    if asked.state and state is None:
        detail = f"training state {asked.state} does not belong to weights {asked.digest}"
        raise TrainerRefusal(RefusalCode.STATE, detail)
    return Beginning(weights, state, taken=True)


def spoken_by(spec: ExperimentSpec, policy: str, vocabulary: tuple[str, ...]) -> Spoken:
    """Return tokenizer and chat format of a policy's model. Raises UnsupportedModel naming what its folder lacks."""
    source = spec.policies[policy].source
    if not isinstance(source, FactoryModel):
        field = "model.path" if isinstance(source, FolderModel) else "model"
        with _named(f"policies.{policy}.{field}"):
            folder = folder_of(source)
            check_kind(folder)
            _check_shape(spec, spec.policies[policy])
            if not isinstance(source, RegisteredModel):  # that one was inspected when it was imported
                inspect(folder)
            return folder_spoken(folder)
    return Spoken(tokenizer_of(source, vocabulary))


def _check_shape(spec: ExperimentSpec, settings: PolicySpec) -> None:
    """Raise UnsupportedModel where a run asks of a folder's model what only native ones can, with what is legal."""
    if spec.resources.engine == "torch":
        try:
            architecture_of(settings.source)
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{error}; set resources.engine: vllm") from error
    if isinstance(shape_of(settings), Architecture):
        return
    if spec.mechanisms.ordered:
        raise UnsupportedModel("only native models give ordered bits; set mechanisms.ordered: false")


def _first_weights(spec: ExperimentSpec, policy: str, words: int, store: VersionStore) -> "dict[str, torch.Tensor]":
    """Return what version 0 publishes. Adapters over equal models have one base, whoever trains them."""
    settings, seed = spec.policies[policy], spec.seed
    if not isinstance(settings.tuning, Lora):
        with _named(f"policies.{policy}.model"):
            return initial_weights(settings.source, words, derive(seed, "weights", policy))
    with _named(f"policies.{policy}.model"):
        own = derive(seed, "base", settings.source.model_dump_json(exclude=DECODING))
        # Engines compute with the very weights that the trainer does.
        base = initial_weights(settings.source, words, own, settings.precision)
    store.put_base(base, settings.tuning)
    if not settings.tuning.adapter:
        return initial_adapter(base, settings.tuning, derive(seed, "weights", policy))
    with _named(f"policies.{policy}.tuning"):
        return read_adapter(settings.tuning.adapter, base, settings.tuning)


def _taken_over(spec: ExperimentSpec, asked: BindRequest, store: VersionStore) -> "dict[str, torch.Tensor]":
    settings = spec.policies[asked.policy]
    weights = store.weights(asked.digest)
    if not isinstance(settings.tuning, Lora):
        with _named(f"policies.{asked.policy}"):
            no_adapter(store.described(asked.digest), asked.policy)
            check_weights(settings.source, weights)
        return weights
    with _named(f"policies.{asked.policy}.tuning"):
        store.find_base(asked.digest, asked.policy, settings.tuning)
        base = store.keep_base()
        check_weights(settings.source, base)
        check_adapter(weights, {name: tuple(tensor.shape) for name, tensor in base.items()}, settings.tuning)
    return weights


class _named:
    """Put the field in front of what is wrong with it."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, WrongAdapterError):
            raise WrongAdapterError(f"{self._field}: {error}") from error
        if isinstance(error, UnsupportedModel):
            raise UnsupportedModel(f"{self._field}: {error}") from error
        if isinstance(error, FileNotFoundError):
            raise UnsupportedModel(f"{self._field}: {error}") from error
