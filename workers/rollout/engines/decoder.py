"""The decoder's mathematics on plain tensors: Qwen2 and Llama weights of a Hugging Face state dict, rows of a KV cache.

Weights are rearranged once per version: query, key and value in one matrix, gate and up in one, matrices stored as
(in, out), and each head's rotary pairs made neighbours, so that a rotation is one complex product. Queries and keys are
permuted alike, which leaves their products unchanged. Weights, activations and keys have one precision, fp32 or bf16;
logits are fp32. In fp32 the attention scale is folded into the query; in bf16 that would round the weights once more.
Large matrices may be left in the memory they came in, which nobody writes to then, this module included: a product
takes them from there as fast, and copying them is most of what a new version of a large model costs. What an adapter
adds to a matrix is computed beside it, never put into it: adapters over one base share its tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from workers.models.architecture import Architecture, UnsupportedModel
from workers.rollout.engines.layout import Segment
from workers.rollout.engines.own_memory import ALIGNMENT, OwnTensors

if TYPE_CHECKING:
    import torch

    from workers.rollout.engines.cache import Cache


Factors: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"
"""(inputs, rank) and (rank, outputs): their product is added to a matrix stored as (inputs, outputs)."""


_JOINED = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
LARGE = 2**18
"""Elements from which a matrix may be left where it lies."""


@dataclass(frozen=True, slots=True)
class LayerAdapter:
    """What is added to a layer's matrices; None: nothing."""

    qkv: "Factors | None"
    out: "Factors | None"
    gate_up: "Factors | None"
    down: "Factors | None"


NO_ADAPTER = LayerAdapter(None, None, None, None)


@dataclass(frozen=True, slots=True)
class Layer:
    norm_in: "torch.Tensor"
    qkv: "torch.Tensor"
    qkv_bias: "torch.Tensor"
    out: "torch.Tensor"
    out_bias: "torch.Tensor | None"
    norm_mlp: "torch.Tensor"
    gate_up: "torch.Tensor"
    down: "torch.Tensor"
    adapter: LayerAdapter = NO_ADAPTER


@dataclass(frozen=True, slots=True)
class Weights:
    """One version of a policy, ready to decode."""

    architecture: Architecture
    embedding: "torch.Tensor"
    layers: tuple[Layer, ...]
    norm: "torch.Tensor"
    head: "torch.Tensor"
    rotations: "torch.Tensor"
    """complex64 [positions, head_dim / 2]"""
    scale: float = 1.0
    """By what products of queries and keys are multiplied; 1 where the queries are already."""
    memory: OwnTensors | None = None
    """What all but the tensors left in place lie in, where that is this version's alone."""

    @property
    def vocabulary(self) -> int:
        return self.embedding.shape[0]

    @property
    def dtype(self) -> "torch.dtype":
        return self.embedding.dtype


def prepare(
    state: "dict[str, torch.Tensor]",
    architecture: Architecture,
    device: str,
    memory: OwnTensors,
    take_over: bool = False,
) -> Weights:
    """Rearrange a state dict; raise `UnsupportedModel` when it holds what the decoder would leave out.

    `memory` takes what is rearranged, in its precision. `take_over`: what of the state has that precision stays as it
    is for as long as the weights are there.
    """

    unknown = [name for name in state if name.endswith((".q_norm.weight", ".k_norm.weight", "mlp.up_proj.bias"))]
    if unknown:
        raise UnsupportedModel(f"the torch engine does not compute {unknown[0]}")
    get = {name: tensor.to(device=device, dtype=memory.dtype) for name, tensor in state.items()}
    count = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("model.layers."))
    embedding = get["model.embed_tokens.weight"]
    return Weights(
        architecture=architecture,
        embedding=embedding if _stays(embedding, take_over) else memory.copy(embedding),
        layers=tuple(_prepare_layer(get, f"model.layers.{i}.", architecture, memory, take_over) for i in range(count)),
        norm=memory.copy(get["model.norm.weight"]),
        head=_turned(get.get("lm_head.weight", embedding), memory, take_over),
        rotations=_rotations(architecture, device),
        memory=memory,
        scale=architecture.head_dim**-0.5 / folded_scale(architecture, memory.dtype),
    )


def folded_scale(a: Architecture, dtype: "torch.dtype") -> float:
    """Return by what prepared query weights of a precision are multiplied."""
    import torch

    return a.head_dim**-0.5 if dtype == torch.float32 else 1.0


def own_elements(state: "Mapping[str, torch.Tensor]") -> int:
    """Return about how many numbers of a state `prepare` does not leave where they lie, with room to spare."""
    small = sum(tensor.numel() + ALIGNMENT for tensor in state.values() if tensor.numel() < LARGE)
    return small + 2 * sum(tensor.numel() for name, tensor in state.items() if name.endswith(_JOINED))


def _prepare_layer(
    get: "dict[str, torch.Tensor]", prefix: str, a: Architecture, memory: OwnTensors, take_over: bool
) -> Layer:
    qkv, qkv_bias = _queries_keys_values(get, f"{prefix}self_attn.", a, memory)
    out_bias = get.get(f"{prefix}self_attn.o_proj.bias")
    gate_up = _stacked(get[f"{prefix}mlp.gate_proj.weight"], get[f"{prefix}mlp.up_proj.weight"])
    return Layer(
        norm_in=memory.copy(get[f"{prefix}input_layernorm.weight"]),
        qkv=_turned(qkv, memory, take_over),
        qkv_bias=qkv_bias,
        out=_turned(get[f"{prefix}self_attn.o_proj.weight"], memory, take_over),
        out_bias=None if out_bias is None else memory.copy(out_bias),
        norm_mlp=memory.copy(get[f"{prefix}post_attention_layernorm.weight"]),
        gate_up=_turned(gate_up, memory, take_over),
        down=_turned(get[f"{prefix}mlp.down_proj.weight"], memory, take_over),
    )


def _queries_keys_values(
    get: "dict[str, torch.Tensor]", prefix: str, a: Architecture, memory: OwnTensors
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return the three matrices as one of (outputs, inputs), and their biases: each number is moved once."""
    import torch

    outputs, inputs = (a.heads + 2 * a.kv_heads) * a.head_dim, get[f"{prefix}q_proj.weight"].shape[1]
    weight, bias = memory.take(outputs, inputs), memory.take(outputs).zero_()
    folded = folded_scale(a, memory.dtype)
    end = 0
    for name, heads in (("q_proj", a.heads), ("k_proj", a.kv_heads), ("v_proj", a.kv_heads)):
        start, end = end, end + heads * a.head_dim
        for whole, part in ((weight, "weight"), (bias, "bias")):
            found, place = get.get(f"{prefix}{name}.{part}"), whole[start:end]
            if found is None:
                continue
            if name == "v_proj":
                place.copy_(found)
            else:
                pairs = _halves(found, heads)
                torch.mul(pairs, folded if name == "q_proj" else 1.0, out=place.view(pairs.shape))
    return weight, bias


def _stays(matrix: "torch.Tensor", take_over: bool) -> bool:
    return take_over and matrix.numel() >= LARGE


def _turned(matrix: "torch.Tensor", memory: OwnTensors, take_over: bool) -> "torch.Tensor":
    """Return a matrix of (outputs, inputs) as (inputs, outputs)."""
    return matrix.t() if _stays(matrix, take_over) else memory.copy(matrix.t())


def _stacked(upper: "torch.Tensor", lower: "torch.Tensor") -> "torch.Tensor":
    """Return two matrices of one width as one: without a copy where the second lies behind the first."""
    import torch

    rows, width = upper.shape[0] + lower.shape[0], upper.shape[1]
    same = upper.untyped_storage().data_ptr() == lower.untyped_storage().data_ptr()
    behind = same and lower.storage_offset() == upper.storage_offset() + upper.numel()
    if behind and upper.is_contiguous() and lower.is_contiguous() and lower.shape[1] == width:
        return upper.as_strided((rows, width), (width, 1))
    return torch.cat([upper, lower])


def pair_rotations(rows: "torch.Tensor", heads: int) -> "torch.Tensor":
    """Interleave the two halves of each head's rows: Hugging Face rotates dimension i with i + head_dim / 2."""
    return _halves(rows, heads).reshape(rows.shape)


def _halves(rows: "torch.Tensor", heads: int) -> "torch.Tensor":
    """Return rows as [heads, pair, half, ...], in the order in which pairs become neighbours."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2)


def _rotations(a: Architecture, device: str) -> "torch.Tensor":
    import torch

    frequencies = a.rope_theta ** (-torch.arange(0, a.head_dim, 2, dtype=torch.int64).float() / a.head_dim)
    angles = torch.arange(a.max_positions, dtype=torch.float32)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).to(device)


def prefill(w: Weights, cache: "Cache", first_row: int, ids: "torch.Tensor", copies: "torch.Tensor") -> None:
    """Fill rows `first_row..` with keys and values of prompts `ids` [m, p], padded on the right.

    Row i gets prompt `copies[i]`: equal prompts are computed once. Positions past a prompt's end hold rubbish that
    decoding overwrites before it is ever attended.
    """
    import torch.nn.functional as F

    a = w.architecture
    m, p = ids.shape
    rows = slice(first_row, first_row + len(copies))
    rotations = w.rotations[:p].repeat(m, 1)[:, None]
    x = w.embedding[ids.reshape(-1)]
    for number, layer in enumerate(w.layers):
        q, k, v = _project(layer, a, x, rotations)
        cache.keys[number][rows, :p] = k.view(m, p, -1)[copies]
        cache.values[number][rows, :p] = v.view(m, p, -1)[copies]
        if number == len(w.layers) - 1:
            return  # only the last layer's keys and values are needed; the last prompt token is decoded, not prefilled
        q, k, v = (t.view(m, p, -1, a.head_dim).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=w.scale, enable_gqa=a.kv_heads < a.heads)
        x = _fold_back(layer, a, x, mixed.transpose(1, 2).reshape(m * p, -1))


def decode(
    w: Weights, cache: "Cache", parts: list[Segment], ids: "torch.Tensor", positions: "torch.Tensor"
) -> "torch.Tensor":
    """Feed one token per live row at its position and return the next token's fp32 logits [n, vocabulary]."""
    import torch

    a = w.architecture
    rotations = w.rotations[positions][:, None]
    masks = cache.masks(parts, positions)
    places = cache.places(positions)
    x = w.embedding[ids]
    for number, layer in enumerate(w.layers):
        q, k, v = _project(layer, a, x, rotations)
        cache.write(number, places, k, v)
        mixed = [cache.attend(number, q, part, mask, w.scale) for part, mask in zip(parts, masks, strict=True)]
        x = _fold_back(layer, a, x, mixed[0] if len(mixed) == 1 else torch.cat(mixed))
    return logits(w, x)


def denoise(
    w: Weights, cache: "Cache", first_row: int, ids: "torch.Tensor", start: "torch.Tensor", visible: "torch.Tensor"
) -> "torch.Tensor":
    """Feed T neighbouring tokens `ids` [n, T] of each row from position `start` [n] on; return [n * T, hidden].

    Their keys and values take the place of those that stood there. `visible` [n, T or 1, L] says which of the first L
    positions each token sees, itself among them; each must see one. Rows from `first_row` on.
    """
    import torch
    import torch.nn.functional as F

    a = w.architecture
    n, tokens = ids.shape
    length = visible.shape[-1]
    places = start[:, None] + torch.arange(tokens, device=ids.device)
    rows = torch.arange(first_row, first_row + n, device=ids.device)[:, None]
    # Those behind the last one that a model knows fill up a block, and nothing sees them.
    rotations = w.rotations[places.clamp(max=len(w.rotations) - 1).reshape(-1)][:, None]
    x = w.embedding[ids.reshape(-1)]
    for number, layer in enumerate(w.layers):
        q, k, v = _project(layer, a, x, rotations)
        cache.keys[number][rows, places] = k.view(n, tokens, -1)
        cache.values[number][rows, places] = v.view(n, tokens, -1)
        keys, values = (
            kept[first_row : first_row + n, :length].view(n, length, a.kv_heads, a.head_dim).transpose(1, 2)
            for kept in (cache.keys[number], cache.values[number])
        )
        mixed = F.scaled_dot_product_attention(
            q.view(n, tokens, a.heads, a.head_dim).transpose(1, 2),
            keys,
            values,
            attn_mask=visible[:, None].expand(n, 1, tokens, length),
            scale=w.scale,
            enable_gqa=a.kv_heads < a.heads,
        )
        x = _fold_back(layer, a, x, mixed.transpose(1, 2).reshape(n * tokens, -1))
    return x


def logits(w: Weights, x: "torch.Tensor") -> "torch.Tensor":
    """Return fp32 logits [n, vocabulary] at what the last layer made, [n, hidden]."""
    import torch.nn.functional as F

    # In fp32 also of a bf16 model: a logit around 20 rounded to bf16 is off by up to 0.06.
    return F.rms_norm(x, x.shape[-1:], w.norm, w.architecture.norm_eps).float() @ w.head.float()


def _project(
    layer: Layer, a: Architecture, x: "torch.Tensor", rotations: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Return queries, keys (both rotated) and values of every token, each [tokens, heads * head_dim]."""
    import torch
    import torch.nn.functional as F

    normed = F.rms_norm(x, x.shape[-1:], layer.norm_in, a.norm_eps)
    qkv = _plus(torch.addmm(layer.qkv_bias, normed, layer.qkv), normed, layer.adapter.qkv)
    rotated = (a.heads + a.kv_heads) * a.head_dim
    pairs = qkv[:, :rotated].view(-1, a.heads + a.kv_heads, a.head_dim // 2, 2)
    if pairs.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(rotations)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()).mul_(rotations)))
    queries = a.heads * a.head_dim
    return qkv[:, :queries], qkv[:, queries:rotated], qkv[:, rotated:]


def _fold_back(layer: Layer, a: Architecture, x: "torch.Tensor", mixed: "torch.Tensor") -> "torch.Tensor":
    """Add attention's and the MLP's contributions to the residual stream, in place."""
    import torch.nn.functional as F

    _plus(x.addmm_(mixed, layer.out), mixed, layer.adapter.out)
    if layer.out_bias is not None:
        x.add_(layer.out_bias)
    normed = F.rms_norm(x, x.shape[-1:], layer.norm_mlp, a.norm_eps)
    gate, up = _plus(normed @ layer.gate_up, normed, layer.adapter.gate_up).chunk(2, 1)
    inner = F.silu(gate).mul_(up)
    return _plus(x.addmm_(inner, layer.down), inner, layer.adapter.down)


def _plus(x: "torch.Tensor", inputs: "torch.Tensor", factors: "Factors | None") -> "torch.Tensor":
    """Add to a matrix's results what an adapter makes of the same inputs, in place."""
    return x if factors is None else x.addmm_(inputs @ factors[0], factors[1])
