"""The training forward pass of Qwen2- and Llama-style decoders: scores of the tokens of responses.

Equal to the Hugging Face models of the same weights (tested), and leaner in four ways: a pack has no padding, matrices
of one input are applied as one, the last layer computes queries and MLP only where a response token is predicted, and
logits never stand in memory as a whole. Where attention pads, it does so on the right, so that causality alone keeps
padding from every result and no mask is needed before the last layer.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

from workers.models.architecture import Architecture, UnsupportedModel
from workers.training.adapted import LowRank
from workers.training.elementwise import gated, rotate
from workers.training.layout import Layout, RowLayout
from workers.training.linear import Linear
from workers.training.packing import PackedTokens
from workers.training.parameters import FlatParameters
from workers.training.scores import scores

if TYPE_CHECKING:
    import torch

    Weights = dict[str, torch.Tensor]

_EMBED, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")


def parameter_order(names: Set[str]) -> list[str]:
    """Return the weights of a decoder in the order this forward pass wants. Raises UnsupportedModel for a stranger."""
    known = list(_ordered(names))
    strange = names - set(known)
    missing = [name for name in known if name not in names and not name.endswith("bias") and name != _HEAD]
    if strange or missing:
        raise UnsupportedModel(f"the training decoder does not know {sorted(strange)} and misses {missing}")
    return [name for name in known if name in names]


def _ordered(names: Set[str]) -> Iterator[str]:
    yield _EMBED
    layer = 0
    while f"model.layers.{layer}.input_layernorm.weight" in names:
        prefix = f"model.layers.{layer}."
        yield f"{prefix}input_layernorm.weight"
        yield from (f"{prefix}{part}.weight" for part in _QKV)
        yield from (f"{prefix}{part}.bias" for part in _QKV)
        yield from (f"{prefix}self_attn.o_proj.{kind}" for kind in ("weight", "bias"))
        yield f"{prefix}post_attention_layernorm.weight"
        yield from (f"{prefix}mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
        layer += 1
    yield _NORM
    yield _HEAD


class _Layer:
    """Leaves of one layer. The last one keeps its query apart from key and value."""

    def __init__(
        self, parameters: FlatParameters, prefix: str, biased: bool, last: bool, adapter: LowRank | None
    ) -> None:
        self.norm1 = parameters.leaf(f"{prefix}input_layernorm.weight")
        groups = (_QKV[:1], _QKV[1:]) if last else (_QKV,)
        self.qkv = [Linear(parameters, [f"{prefix}{part}" for part in group], biased, adapter) for group in groups]
        out = f"{prefix}self_attn.o_proj"
        self.out = Linear(parameters, [out], f"{out}.bias" in parameters, adapter)
        self.norm2 = parameters.leaf(f"{prefix}post_attention_layernorm.weight")
        self.gate_up = Linear(parameters, [f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"], False, adapter)
        self.down = Linear(parameters, [f"{prefix}mlp.down_proj"], False, adapter)


class Decoder:
    """Computes scores from flat parameters, and an adapter over them; holds no weight of its own."""

    def __init__(
        self,
        parameters: FlatParameters,
        architecture: Architecture,
        adapter: LowRank | None = None,
        recompute: bool = False,
    ) -> None:
        """`recompute`: keep of each layer its input alone, and compute the rest again in the backward pass."""
        depth = sum(name.endswith("input_layernorm.weight") for name in parameters.names)
        biased = "model.layers.0.self_attn.q_proj.bias" in parameters
        self._parameters = parameters
        self._architecture = architecture
        self._recompute = recompute
        self._embed = parameters.exact_leaf(_EMBED)
        self._layers = [
            _Layer(parameters, f"model.layers.{number}.", biased, number == depth - 1, adapter)
            for number in range(depth)
        ]
        self._norm = parameters.leaf(_NORM)
        self._head = parameters.leaf(_HEAD if _HEAD in parameters else _EMBED)
        self._rotation = _rotation(architecture, 64, self._head)

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
        logprobs, entropies = scores(self._hidden(layout), self._head, layout.asked)
        return logprobs, entropies[: len(batch.at)]

    def logits(self, batch: PackedTokens) -> "torch.Tensor":
        """Return [n, vocabulary]: logits at the tokens of a pack that predict."""
        from torch.nn import functional as F

        return F.linear(self._hidden(Layout.of(batch, self._head))[: len(batch.at)], self._head)

    def _hidden(self, layout: Layout) -> "torch.Tensor":
        """Return [n, hidden]: what the head reads at the tokens that predict."""
        from torch.nn import functional as F

        cos, sin = self._rotation_at(layout.positions, layout.longest)
        x = F.embedding(layout.ids, self._embed).to(self._head.dtype)
        for layer in self._layers[:-1]:
            x = self._through(layer, layout, cos, sin, x)
        x = self._through_last(self._layers[-1], layout, cos, sin, x)
        return self._normed(x, self._norm)

    def _kept(self, layer: "Callable[[torch.Tensor], torch.Tensor]", x: "torch.Tensor") -> "torch.Tensor":
        """Apply a layer, and keep what its backward pass needs, or what that is computed from."""
        if not self._recompute:
            return layer(x)
        from torch.utils.checkpoint import checkpoint

        found: torch.Tensor = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)
        return found

    def _through(
        self, layer: _Layer, layout: Layout, cos: "torch.Tensor", sin: "torch.Tensor", x: "torch.Tensor"
    ) -> "torch.Tensor":
        return self._kept(partial(self._computed, layer, layout, cos, sin), x)

    def _through_last(
        self, layer: _Layer, layout: Layout, cos: "torch.Tensor", sin: "torch.Tensor", x: "torch.Tensor"
    ) -> "torch.Tensor":
        """Go on with the tokens that predict alone; the others are seen and do not look."""
        return self._kept(partial(self._computed_last, layer, layout, cos, sin), x)

    def _computed(
        self, layer: _Layer, layout: Layout, cos: "torch.Tensor", sin: "torch.Tensor", x: "torch.Tensor"
    ) -> "torch.Tensor":
        import torch

        heads, kv_heads, width = self._architecture.heads, self._architecture.kv_heads, self._architecture.head_dim
        (qkv,) = layer.qkv
        mixed = qkv(self._normed(x, layer.norm1)).view(len(x), heads + 2 * kv_heads, width)
        turning, value = torch.split(mixed, [heads + kv_heads, kv_heads], 1)
        query, key = torch.split(rotate(turning, cos, sin), [heads, kv_heads], 1)
        seen = [
            spread.gather(_attention(spread.lay(q), spread.lay(k), spread.lay(v), visible))
            for spread, visible, q, k, v in zip(
                layout.tokens, layout.seen, *(_split(each, layout.tokens) for each in (query, key, value)), strict=True
            )
        ]
        x = x + layer.out(_joined(seen))
        return x + self._mlp(layer, x)

    def _computed_last(
        self, layer: _Layer, layout: Layout, cos: "torch.Tensor", sin: "torch.Tensor", x: "torch.Tensor"
    ) -> "torch.Tensor":
        import torch

        heads, kv_heads, width = self._architecture.heads, self._architecture.kv_heads, self._architecture.head_dim
        for_query, for_rest = layer.qkv
        everywhere, at = self._normed(x, layer.norm1), layout.at
        query = for_query(everywhere[at]).view(len(at), heads, width)
        query = rotate(query, cos[at], sin[at])
        turning, value = torch.split(for_rest(everywhere).view(len(x), 2 * kv_heads, width), kv_heads, 1)
        key = rotate(turning, cos, sin)
        seen = [
            asked.gather(_attention(asked.lay(q), tokens.lay(k), tokens.lay(v), visible))
            for asked, tokens, visible, q, k, v in zip(
                layout.predictions,
                layout.tokens,
                layout.visible,
                _split(query, layout.predictions),
                *(_split(each, layout.tokens) for each in (key, value)),
                strict=True,
            )
        ]
        x = x[at] + layer.out(_joined(seen))
        return x + self._mlp(layer, x)

    def _mlp(self, layer: _Layer, x: "torch.Tensor") -> "torch.Tensor":
        return layer.down(gated(layer.gate_up(self._normed(x, layer.norm2))))

    def _normed(self, x: "torch.Tensor", weight: "torch.Tensor") -> "torch.Tensor":
        from torch.nn import functional as F

        return F.rms_norm(x, weight.shape, weight, self._architecture.norm_eps)

    def _rotation_at(self, positions: "torch.Tensor", longest: int) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return cosine and sine [N, 1, width] at positions; the table behind it grows by doubling."""
        known = self._rotation[0].shape[0]
        if longest > known:
            self._rotation = _rotation(self._architecture, max(longest, 2 * known), self._head)
        cos, sin = self._rotation
        return cos[positions], sin[positions]


def _rotation(architecture: Architecture, length: int, like: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    exact = torch.float64 if like.dtype == torch.float64 else torch.float32
    width = architecture.head_dim
    steps = torch.arange(0, width, 2, device=like.device).to(exact) / width
    angles = torch.arange(length, device=like.device).to(exact).unsqueeze(1) / architecture.rope_theta**steps
    angles = torch.cat((angles, angles), -1).unsqueeze(1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _attention(
    query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor", visible: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """Attend over [b, T, heads, width]; causally unless `visible` says what each query sees."""
    from torch.nn import functional as F

    seen = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=visible,
        is_causal=visible is None,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return seen.transpose(1, 2).flatten(2)


def _split(x: "torch.Tensor", spreads: "Sequence[RowLayout]") -> "Sequence[torch.Tensor]":
    """Return the part of each stretch. One split has one backward pass, where slices would have one each."""
    import torch

    return torch.split(x, [spread.items for spread in spreads]) if len(spreads) > 1 else (x,)


def _joined(parts: "list[torch.Tensor]") -> "torch.Tensor":
    import torch

    return torch.cat(parts) if len(parts) > 1 else parts[0]
