"""The training forward pass of Qwen2- and Llama-style decoders: logits at the positions that predict responses.

Equal to the Hugging Face models of the same weights (tested), and leaner in three ways: matrices of one input are
applied as one, the last layer computes queries and MLP only where a response token is predicted, and rows are padded on
the right, so that causality alone keeps padding from every result and no mask is needed before the last layer.
"""

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from workers.models.architecture import Architecture, UnsupportedModel
from workers.training.packing import Batch
from workers.training.parameters import FlatParameters

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

    def __init__(self, parameters: FlatParameters, prefix: str, biased: bool, last: bool) -> None:
        self.norm1 = parameters.leaf(f"{prefix}input_layernorm.weight")
        groups = (_QKV[:1], _QKV[1:]) if last else (_QKV,)
        self.qkv = [
            (
                parameters.leaf(*(f"{prefix}{part}.weight" for part in group)),
                parameters.leaf(*(f"{prefix}{part}.bias" for part in group)) if biased else None,
            )
            for group in groups
        ]
        self.out = parameters.leaf(f"{prefix}self_attn.o_proj.weight")
        out_bias = f"{prefix}self_attn.o_proj.bias"
        self.out_bias = parameters.leaf(out_bias) if out_bias in parameters.named() else None
        self.norm2 = parameters.leaf(f"{prefix}post_attention_layernorm.weight")
        self.gate_up = parameters.leaf(f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight")
        self.down = parameters.leaf(f"{prefix}mlp.down_proj.weight")


class Decoder:
    """Computes logits from flat parameters; holds no weight of its own."""

    def __init__(self, parameters: FlatParameters, architecture: Architecture) -> None:
        names = parameters.named().keys()
        depth = sum(name.endswith("input_layernorm.weight") for name in names)
        biased = "model.layers.0.self_attn.q_proj.bias" in names
        self._architecture = architecture
        self._embed = parameters.leaf(_EMBED)
        self._layers = [
            _Layer(parameters, f"model.layers.{number}.", biased, number == depth - 1) for number in range(depth)
        ]
        self._norm = parameters.leaf(_NORM)
        self._head = parameters.leaf(_HEAD) if _HEAD in names else self._embed
        self._rotation = _rotation(architecture, 64, self._embed)

    @property
    def vocabulary(self) -> int:
        return int(self._embed.shape[0])

    @property
    def width(self) -> int:
        return int(self._embed.shape[1])

    @property
    def device(self) -> "torch.device":
        return self._embed.device

    def logits(self, ids: "torch.Tensor", window: "torch.Tensor") -> "torch.Tensor":
        """Return [B, R, vocabulary]: logits at `window` (positions, int64 [B, R]) of right-padded `ids` [B, T]."""
        from torch.nn import functional as F

        return F.linear(self._hidden(ids, window), self._head)

    def openings(self, batch: Batch) -> "torch.Tensor":
        """Return [rows, width]: what the head reads at the last token of each row's prompt."""
        import torch

        ids, window, source = (
            torch.from_numpy(table).to(self.device) for table in (batch.ids, batch.window, batch.source)
        )
        return self._hidden(ids, window[:, :1])[:, 0][source]

    def _hidden(self, ids: "torch.Tensor", window: "torch.Tensor") -> "torch.Tensor":
        """Return [B, R, width]: what the head reads."""
        import torch
        from torch.nn import functional as F

        rows, length = ids.shape
        cos, sin = self._rotation_for(length)
        x = F.embedding(ids, self._embed)
        for layer in self._layers[:-1]:
            x = self._through(layer, cos, sin, x)
        at = (window + torch.arange(rows, device=ids.device).unsqueeze(1) * length).flatten()
        x = self._through_last(self._layers[-1], at, window, cos, sin, x)
        return self._normed(x, self._norm)

    def _through(self, layer: _Layer, cos: "torch.Tensor", sin: "torch.Tensor", x: "torch.Tensor") -> "torch.Tensor":
        x = x + self._attend(layer, self._normed(x, layer.norm1), cos, sin)
        return x + self._mlp(layer, x)

    def _through_last(
        self,
        layer: _Layer,
        at: "torch.Tensor",
        window: "torch.Tensor",
        cos: "torch.Tensor",
        sin: "torch.Tensor",
        x: "torch.Tensor",
    ) -> "torch.Tensor":
        everywhere = self._normed(x, layer.norm1)
        x = x.flatten(0, 1)[at].view(*window.shape, -1)
        x = x + self._attend_last(layer, everywhere, at, window, cos, sin)
        return x + self._mlp(layer, x)

    def _attend(self, layer: _Layer, x: "torch.Tensor", cos: "torch.Tensor", sin: "torch.Tensor") -> "torch.Tensor":
        from torch.nn import functional as F

        heads, kv_heads, width = self._architecture.heads, self._architecture.kv_heads, self._architecture.head_dim
        ((weight, bias),) = layer.qkv
        mixed = F.linear(x, weight, bias).view(*x.shape[:2], heads + 2 * kv_heads, width)
        turned = _rotate(mixed[:, :, : heads + kv_heads], cos, sin)
        query, key = turned[:, :, :heads], turned[:, :, heads:]
        seen = _attention(query, key, mixed[:, :, heads + kv_heads :], None)
        return F.linear(seen, layer.out, layer.out_bias)

    def _attend_last(
        self,
        layer: _Layer,
        everywhere: "torch.Tensor",
        at: "torch.Tensor",
        window: "torch.Tensor",
        cos: "torch.Tensor",
        sin: "torch.Tensor",
    ) -> "torch.Tensor":
        import torch
        from torch.nn import functional as F

        heads, kv_heads, width = self._architecture.heads, self._architecture.kv_heads, self._architecture.head_dim
        rows, length, hidden = everywhere.shape
        (query_weight, query_bias), (weight, bias) = layer.qkv
        here = everywhere.view(rows * length, hidden)[at]
        query = F.linear(here, query_weight, query_bias).view(*window.shape, heads, width)
        query = _rotate(query, cos[window], sin[window])
        mixed = F.linear(everywhere, weight, bias).view(rows, length, 2 * kv_heads, width)
        key = _rotate(mixed[:, :, :kv_heads], cos, sin)
        visible = torch.arange(length, device=window.device) <= window.unsqueeze(-1)
        seen = _attention(query, key, mixed[:, :, kv_heads:], visible.unsqueeze(1))
        return F.linear(seen, layer.out, layer.out_bias)

    def _mlp(self, layer: _Layer, x: "torch.Tensor") -> "torch.Tensor":
        from torch.nn import functional as F

        gate, up = F.linear(self._normed(x, layer.norm2), layer.gate_up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, layer.down)

    def _normed(self, x: "torch.Tensor", weight: "torch.Tensor") -> "torch.Tensor":
        from torch.nn import functional as F

        return F.rms_norm(x, weight.shape, weight, self._architecture.norm_eps)

    def _rotation_for(self, length: int) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return cosine and sine [T, 1, width] of the first positions; the table grows by doubling."""
        known = self._rotation[0].shape[0]
        if length > known:
            self._rotation = _rotation(self._architecture, max(length, 2 * known), self._embed)
        cos, sin = self._rotation
        return cos[:length], sin[:length]


def _rotation(architecture: Architecture, length: int, like: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    exact = torch.float64 if like.dtype == torch.float64 else torch.float32
    width = architecture.head_dim
    steps = torch.arange(0, width, 2, device=like.device).to(exact) / width
    angles = torch.arange(length, device=like.device).to(exact).unsqueeze(1) / architecture.rope_theta**steps
    angles = torch.cat((angles, angles), -1).unsqueeze(1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotate(x: "torch.Tensor", cos: "torch.Tensor", sin: "torch.Tensor") -> "torch.Tensor":
    """Turn each head's pairs (first half, second half) by its position's angles."""
    import torch

    first, second = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat((-second, first), -1), sin)


def _attention(
    query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor", visible: "torch.Tensor | None"
) -> "torch.Tensor":
    """Attend over [B, T, heads, width]; causally unless `visible` says what each query sees."""
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
