"""An adapter in the decoder's form: beside the prepared weights of its base, which every adapter over it shares.

The base's matrices are rearranged (query, key and value in one, gate and up in one, rotary pairs made neighbours, scale
folded in where it is), so the adapter's factors are rearranged alike: the factors of matrices that were joined stand
side by side, each in its own columns. Nothing of the base is copied or changed, so a version of an adapter costs its
own size.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import Lora
from workers.models.adapter import parts_of
from workers.models.architecture import Architecture
from workers.rollout.engines.decoder import Factors, Layer, LayerAdapter, Weights, folded_scale, pair_rotations

if TYPE_CHECKING:
    import torch

    State = dict[str, torch.Tensor]


WIDTH = 16
"""Joined factors are as wide as a multiple of this."""


def over(base: Weights, adapter: "State", lora: Lora, device: str) -> Weights:
    """Return the weights of a base with an adapter that was checked to fit it."""
    get = {name: tensor.to(device=device, dtype=base.dtype) for name, tensor in adapter.items()}
    layers = tuple(
        replace(layer, adapter=_of_layer(layer, get, f"model.layers.{number}.", lora, base.architecture))
        for number, layer in enumerate(base.layers)
    )
    return replace(base, layers=layers, memory=None)  # the base's memory is not this version's to give away


def _of_layer(layer: Layer, get: "State", prefix: str, lora: Lora, a: Architecture) -> LayerAdapter:
    heads, mlp = a.heads * a.head_dim, layer.gate_up.shape[1] // 2
    kv_heads = a.kv_heads * a.head_dim

    def factors(widths: dict[str, int]) -> "Factors | None":
        """Join the factors of neighbouring matrices, given with their widths; None when none of them is adapted."""
        found = {name: _pair(get, f"{prefix}{name}", lora, a) for name in widths}
        present = [pair for pair in found.values() if pair is not None]
        if not present:
            return None
        down = _padded(_side_by_side([pair[0] for pair in present]))
        up = present[0][1].new_zeros(down.shape[1], sum(widths.values()))
        row = column = 0
        for name, width in widths.items():
            pair = found[name]
            if pair is not None:
                up[row : row + lora.rank, column : column + width] = pair[1]
                row += lora.rank
            column += width
        return down, up

    return LayerAdapter(
        qkv=factors({"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads, "self_attn.v_proj": kv_heads}),
        out=factors({"self_attn.o_proj": layer.out.shape[1]}),
        gate_up=factors({"mlp.gate_proj": mlp, "mlp.up_proj": mlp}),
        down=factors({"mlp.down_proj": layer.down.shape[1]}),
    )


def _pair(get: "State", stem: str, lora: Lora, a: Architecture) -> "Factors | None":
    """Return a matrix's factors as (inputs, rank) and (rank, outputs), rearranged as its base was."""
    target = stem.rpartition(".")[2]
    if target not in lora.targets:
        return None
    (part,) = parts_of([f"{stem}.weight"], lora.targets)
    up = get[part.up] * lora.scale
    if target == "q_proj":
        up = pair_rotations(up, a.heads) * folded_scale(a, up.dtype)
    elif target == "k_proj":
        up = pair_rotations(up, a.kv_heads)
    return get[part.down].t().contiguous(), up.t().contiguous()


def _padded(down: "torch.Tensor") -> "torch.Tensor":
    """Widen with columns of zeros: of some odd widths, kernels give a row other bits at another place of a batch."""
    from torch.nn import functional as F

    return F.pad(down, (0, -down.shape[1] % WIDTH)).contiguous()


def _side_by_side(downs: "list[torch.Tensor]") -> "torch.Tensor":
    import torch

    return torch.cat(downs, 1)
