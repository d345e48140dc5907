"""A model of the transformers library over flat parameters: scores of the tokens of responses.

The library's own classes compute; their parameters are leaves of the policy's buffers, and a pack is one row of tokens
whose positions begin anew with each document. Models whose attention cannot be replaced, or that carry a state from
token to token, compute their documents one by one. The head is never asked for whole logits.

Invariant: before it is used, a model was seen to give, on its very weights, the logits of the library's own forward
pass for documents that were packed; one whose head or attention does more than is computed here is refused by name.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import structlog

from workers.models.errors import UnsupportedModel
from workers.models.families import LibraryModel
from workers.training.adapted import Factors, LowRank
from workers.training.families.attention import DOCUMENTS, laid_out, register
from workers.training.families.skeleton import skeleton, stacks_of, words_of
from workers.training.layout import Layout, RowLayout
from workers.training.packing import PackedTokens
from workers.training.parameters import FlatParameters
from workers.training.scores import Bend, scores

if TYPE_CHECKING:
    import torch

log = structlog.get_logger(__name__)

PLAIN = "eager"
"""The library's name for attention that leaves nothing out, such as the caps of scores that fused kernels lack."""
_TRIED = (5, 3, 9)
"""Tokens of the documents on which a model is tried before it is used."""
_FAR = {"fp64": 1e-4, "fp32": 1e-3, "bf16": 0.1}
"""Greatest difference of logits there, as a share of their size: another order of sums, or another way to compute."""


class LibraryDecoder:
    """Computes scores from flat parameters, and an adapter over them; holds no weight of its own."""

    def __init__(
        self,
        parameters: FlatParameters,
        model: LibraryModel,
        adapter: LowRank | None = None,
        recompute: bool = False,
    ) -> None:
        """Raises UnsupportedModel for one that cannot be computed, WrongAdapterError for an adapter out of reach."""
        words = words_of({name: parameters.shape(name) for name in parameters.names})
        self._model: Any = skeleton(model, words, parameters.precision)
        self._base: Any = self._model.base_model
        places = {stack.parameter: stack.weights for stack in stacks_of(model, words)}
        _place(self._model, parameters, places)
        self._head, self._bend = _head(self._model, parameters, places)
        _embed(self._model, parameters, places)
        if adapter is not None:
            _adapt(self._model, adapter, places)
        if recompute:
            _recompute(self._model)
        register()
        self.packs = False
        """Whether documents are computed together; one by one otherwise, which is slower."""
        self._begin(_FAR[parameters.precision])

    @property
    def vocabulary(self) -> int:
        return int(self._head.shape[0])

    @property
    def width(self) -> int:
        return int(self._head.shape[1])

    def openings(self, batch: PackedTokens) -> "torch.Tensor":
        """Return [turns, width]: what the head reads where each turn's reply begins."""
        import torch

        hidden = self._hidden(Layout.of(batch, self._head))
        return hidden[torch.from_numpy(batch.drawn_at[batch.table.ravel()[batch.openings]]).to(hidden.device)]

    def scores(self, batch: PackedTokens) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return the log-probabilities [m] of a pack's drawn tokens, and the entropies [n] of what drew them."""
        layout = Layout.of(batch, self._head)
        logprobs, entropies = scores(self._hidden(layout), self._head, layout.asked, self._bend)
        return logprobs, entropies[: len(batch.at)]

    def logits(self, batch: PackedTokens) -> "torch.Tensor":
        """Return [n, vocabulary]: logits at the tokens of a pack that predict."""
        return self._logits(self._hidden(Layout.of(batch, self._head))[: len(batch.at)])

    def _logits(self, hidden: "torch.Tensor") -> "torch.Tensor":
        from torch.nn import functional as F

        return self._bend.logits(F.linear(hidden, self._head))

    def _hidden(self, layout: Layout) -> "torch.Tensor":
        """Return [n, hidden]: what the head reads at the tokens that predict."""
        return self._everywhere(layout.ids, layout.positions, layout.tokens)[layout.at]

    def _everywhere(
        self, ids: "torch.Tensor", positions: "torch.Tensor", stretches: tuple[RowLayout, ...]
    ) -> "torch.Tensor":
        """Return [N, hidden]: what the head reads at each token of a pack."""
        import torch

        if self.packs:
            with laid_out(stretches):
                return self._seen(ids, positions)
        starts = [*torch.nonzero(positions == 0).flatten().tolist(), len(ids)]
        return torch.cat([self._seen(ids[a:b], positions[a:b]) for a, b in pairwise(starts)])

    def _seen(self, ids: "torch.Tensor", positions: "torch.Tensor") -> "torch.Tensor":
        found: torch.Tensor = self._base(
            input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
        ).last_hidden_state
        return found[0]

    def _begin(self, far: float) -> None:
        """Choose the way to compute packs in which documents get the logits of the library's own pass.

        Raises UnsupportedModel where none does.
        """
        kind, alone = f"model_type {self._model.config.model_type!r}", self._model.config._attn_implementation
        ways = (DOCUMENTS, alone, PLAIN) if _may_pack(self._model) else (alone, PLAIN)
        try:
            self._model.set_attn_implementation(PLAIN)
            expected = self._tried(own=False)
            distance = float("inf")
            for attention in ways:
                self.packs = attention == DOCUMENTS
                self._model.set_attn_implementation(attention)
                found = self._tried(own=True)
                distance = float((found - expected).norm() / expected.norm())
                if distance <= far:
                    return
                log.info("not computed this way", family=kind, attention=attention, difference=distance)
        except Exception as error:  # a model's code raises whatever its modules raise
            raise UnsupportedModel(f"{kind} cannot be computed here: {type(error).__name__}: {error}") from error
        raise UnsupportedModel(
            f"{kind} makes its logits in a way that the trainer does not know: without that way they differ by "
            f"{distance:.2g} of their size"
        )

    def _tried(self, own: bool) -> "torch.Tensor":
        """Return [N, vocabulary]: logits of some documents, computed as packs are or by the library alone."""
        import torch

        device = self._head.device
        documents = [torch.arange(n, device=device) * 7 % self.vocabulary for n in _TRIED]
        positions = torch.cat([torch.arange(n, device=device) for n in _TRIED])
        stretches = tuple(RowLayout(1, n, None, None) for n in _TRIED)
        with torch.no_grad():
            if own:
                return self._logits(self._everywhere(torch.cat(documents), positions, stretches)).double()
            made = [self._model(input_ids=one.unsqueeze(0), use_cache=False).logits[0] for one in documents]
            return torch.cat(made).double()


def _may_pack(model: Any) -> bool:
    """Tell whether a model leaves its attention to others, and nothing else of it looks at other tokens."""
    chunked = getattr(model.config, "attention_chunk_size", None)  # chunks would be counted from the pack's first token
    return bool(model._supports_attention_backend) and not model._is_stateful and not chunked


def _place(model: Any, parameters: FlatParameters, places: dict[str, tuple[str, ...]]) -> None:
    """Put leaves in the place of a model's parameters, and its tables beside them."""
    for name, weights in places.items():
        owner, own = _owner(model, name)
        shape = owner._parameters[own].shape
        leaf = parameters.leaf(*weights)
        # A view is a step of the backward pass, and one made this early comes after all others: too late for FSDP2.
        owner._parameters[own] = leaf if leaf.shape == shape else leaf.view(shape)
    for name, table in list(model.named_non_persistent_buffers()):
        owner, own = _owner(model, name)
        owner._buffers[own] = table.to(parameters.compute.device)


def _owner(model: Any, name: str) -> tuple[Any, str]:
    path, _, own = name.rpartition(".")
    return model.get_submodule(path), own


def _name_of(model: Any, module: Any) -> str:
    """Return the name under which a module's weight is a parameter of the model."""
    path = next(path for path, found in model.named_modules() if found is module)
    return f"{path}.weight"


def _head(model: Any, parameters: FlatParameters, places: dict[str, tuple[str, ...]]) -> "tuple[torch.Tensor, Bend]":
    """Return the head's weight, tied to the embedding or not, and what becomes of its products."""
    head, config = model.get_output_embeddings(), model.config
    name = _name_of(model, head)
    if name not in places:
        name = _name_of(model, model.get_input_embeddings())
    if getattr(head, "bias", None) is not None:
        raise UnsupportedModel(f"model_type {config.model_type!r} has a head with a bias, which is not trained here")
    weight = parameters.leaf(*places[name])
    head._parameters["weight"] = weight
    scale = getattr(config, "logit_scale", None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    return weight, Bend(float(scale), getattr(config, "final_logit_softcapping", None))


def _embed(model: Any, parameters: FlatParameters, places: dict[str, tuple[str, ...]]) -> None:
    """Sum the gradient of the input embedding in the masters' precision: a word's sum has many terms."""
    embedding = model.get_input_embeddings()
    (weight,) = places[_name_of(model, embedding)]
    exact, like = parameters.exact_leaf(weight), parameters.compute
    resting, computed = embedding._parameters["weight"].detach(), embedding.forward
    embedding.padding_idx = None  # the word is a word: what is trained on it counts

    def forward(ids: "torch.Tensor") -> "torch.Tensor":
        """Let the module see the rows in question as its whole table, whatever it makes of them."""
        import torch
        from torch.nn import functional as F

        rows = F.embedding(ids.flatten(), exact).to(like.dtype)
        embedding._parameters["weight"] = rows
        try:
            found: torch.Tensor = computed(torch.arange(len(rows), device=ids.device).view(ids.shape))
        finally:
            embedding._parameters["weight"] = resting
        return found

    embedding.forward = forward


def _adapt(model: Any, adapter: LowRank, places: dict[str, tuple[str, ...]]) -> None:
    """Add what an adapter makes of a layer's input to what the layer makes of it."""
    from torch import nn

    reached = set()
    for path, module in model.named_modules():
        weights = places.get(f"{path}.weight", ())
        if isinstance(module, nn.Linear) and len(weights) == 1:
            factors = adapter.factors(weights[0])
            if factors is not None:
                module.register_forward_hook(partial(_added, factors, adapter.scale))
                reached.add(weights[0])
    if beyond := sorted(set(adapter.adapted) - reached):
        raise UnsupportedModel(f"an adapter cannot reach {beyond[:3]}, which are not separate layers of the model")


def _added(factors: Factors, scale: float, _: Any, given: "tuple[torch.Tensor]", y: "torch.Tensor") -> "torch.Tensor":
    from torch.nn import functional as F

    return y + scale * F.linear(F.linear(given[0], factors.down), factors.up)


def _recompute(model: Any) -> None:
    """Keep of each layer its input alone."""
    for layer in _layers(model):
        layer.forward = partial(_checkpointed, layer.forward)


def _layers(model: Any) -> Iterator[Any]:
    """Return the modules that the library marks as what is to be computed again."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not found:
        text = "has no layers that can be computed again; set activations: keep"
        raise UnsupportedModel(f"model_type {model.config.model_type!r} {text}")
    yield from found


def _checkpointed(forward: Callable[..., Any], *given: Any, **named: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return cast("Any", checkpoint)(forward, *given, use_reentrant=False, preserve_rng_state=False, **named)
