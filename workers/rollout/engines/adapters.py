"""Adapters and what they are laid over, from the state plane, each checked before an engine takes it.

Invariants: policies that name equal models and precisions and train adapters have one base, by its digest, for the life
of the engine; it is read and prepared once. An adapter of another base, of other sizes, or for another kind of policy
is refused in words, and what the engine holds stays as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from flexmarl.contracts.specification.team import Lora, PolicySpec
from workers.models.adapter import WrongAdapterError, base_of, check_adapter
from workers.models.checks import check_numbers
from workers.models.weights import weight_shapes
from workers.transfer.base import StatePlane

if TYPE_CHECKING:
    import torch

    State = dict[str, torch.Tensor]

Prepared = TypeVar("Prepared")

EMBEDDING = "model.embed_tokens.weight"
SHOWN = 12
"""Digits of a digest in a refusal."""


@dataclass(frozen=True, slots=True)
class _Base(Generic[Prepared]):
    digest: str
    shapes: dict[str, tuple[int, ...]]
    prepared: Prepared


class Adapters(Generic[Prepared]):
    def __init__(self, plane: StatePlane, prepare: "Callable[[PolicySpec, State], Prepared]") -> None:
        self._plane = plane
        self._prepare = prepare
        self._bases: dict[str, _Base[Prepared]] = {}
        """Model and precision -> what adapters are laid over."""

    def get(self, policy: str, settings: PolicySpec, lora: Lora, digest: str) -> "tuple[Prepared, State]":
        """Return the prepared base of a policy's published adapter, and the adapter. Raises what refuses them."""
        named = base_of(self._plane.meta(digest), policy, lora)
        base = self._base(settings, named)
        if base.digest != named:
            raise WrongAdapterError(
                f"this adapter of {policy} is laid over {named[:SHOWN]}, and the engine holds {base.digest[:SHOWN]} "
                "for that model; load an adapter trained in this run"
            )
        adapter = self._plane.get(digest)
        check_adapter(adapter, base.shapes, lora)
        check_numbers(adapter)
        return base.prepared, adapter

    def _base(self, settings: PolicySpec, digest: str) -> _Base[Prepared]:
        """Return the base of a model; the first adapter that is loaded says which that is."""
        model = settings.model_dump_json(include={"model", "precision"})
        if model not in self._bases:
            state = self._plane.get(digest)
            shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
            if shapes != weight_shapes(settings.source, shapes.get(EMBEDDING, (0,))[0]):
                raise WrongAdapterError(
                    f"what this adapter is laid over, {digest[:SHOWN]}, is not the model of its policy; "
                    "load an adapter trained in this run"
                )
            self._bases[model] = _Base(digest, shapes, self._prepare(settings, state))
        return self._bases[model]
