"""Attention of a pack for models of the transformers library: each document by itself.

A pack is one row of documents. The library would mask it with a table of the square of the pack; here each stretch of
documents of about one length is one call of attention, as in the native decoder. What a token sees is what the model's
own mask function says of it (causal, sliding window), asked for these pairs of tokens alone.

`register` makes both functions known to the library under `DOCUMENTS`; a model calls them with one layer's queries,
keys and values. The layout of the pack in computation is that of `laid_out`; a mask carries it along, so that a layer
that is computed again in the backward pass finds it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from workers.training.layout import RowLayout

if TYPE_CHECKING:
    import torch

DOCUMENTS = "flexmarl_documents"
"""Name of this attention in the library's registry."""

_current: ContextVar[tuple[RowLayout, ...]] = ContextVar("stretches of the pack in computation")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the tokens of a pack see, in the place of a mask."""

    stretches: tuple[RowLayout, ...]
    masks: "tuple[torch.Tensor | None, ...]"
    """Of each stretch: [b, 1, T, T], True where a place sees another; None: all that stands before it, and itself."""


@contextmanager
def laid_out(stretches: tuple[RowLayout, ...]) -> Iterator[None]:
    """Compute a pack of these stretches inside."""
    before = _current.set(stretches)
    try:
        yield
    finally:
        _current.reset(before)


@cache
def register() -> None:
    """Make the library know this attention."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(DOCUMENTS, attend)
    AttentionMaskInterface.register(DOCUMENTS, see)


def see(*_: Any, mask_function: "Callable[..., torch.Tensor]", device: "torch.device", **__: Any) -> Seen:
    """Return what the tokens of the current pack see by a model's mask function of (batch, head, query, key)."""
    stretches, masks, first = _current.get(), [], 0
    for spread in stretches:
        masks.append(_mask(spread, first, mask_function, device))
        first += spread.items
    return Seen(stretches, tuple(masks))


def _mask(
    spread: RowLayout, first: int, mask_function: "Callable[..., torch.Tensor]", device: "torch.device"
) -> "torch.Tensor | None":
    import torch

    tokens = spread.lay(torch.arange(first, first + spread.items, device=device))
    real = torch.ones(tokens.numel(), dtype=torch.bool, device=device)
    if spread.taken is not None:
        real = torch.zeros_like(real).index_fill_(0, spread.taken, True)
    real = real.view(tokens.shape)
    zero = torch.zeros((), dtype=torch.long, device=device)
    visible = mask_function(zero, zero, tokens.unsqueeze(2), tokens.unsqueeze(1)) & real.unsqueeze(1)
    place = torch.arange(tokens.shape[1], device=device)
    before = place.unsqueeze(0) <= place.unsqueeze(1)
    if bool(((visible == before) | ~real.unsqueeze(2)).all()):
        return None
    return visible.unsqueeze(1)


def attend(
    module: Any,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attention_mask: Seen,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: "torch.Tensor | None" = None,
    **_: Any,
) -> "tuple[torch.Tensor, None]":
    """Return [1, N, heads, width] of queries, keys and values [1, heads, N, width].

    `softcap` bounds scores by tanh, `s_aux` [heads] are scores of sinks: a share of attention that goes nowhere.
    """
    import torch

    parts = zip(
        attention_mask.stretches,
        attention_mask.masks,
        *(_split(each, attention_mask.stretches) for each in (query, key, value)),
        strict=True,
    )
    seen = []
    for spread, mask, *given in parts:
        q, k, v = (spread.lay(each).transpose(1, 2) for each in given)
        plain = softcap is None and s_aux is None
        made = _fused(q, k, v, mask, scaling) if plain else _spelt_out(q, k, v, mask, scaling, softcap, s_aux)
        seen.append(spread.gather(made.transpose(1, 2)))
    return torch.cat(seen).unsqueeze(0), None


def _split(x: "torch.Tensor", stretches: tuple[RowLayout, ...]) -> "tuple[torch.Tensor, ...]":
    """Return the tokens [items, heads, width] of each stretch."""
    import torch

    return torch.split(x[0].transpose(0, 1), [spread.items for spread in stretches])


def _fused(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    mask: "torch.Tensor | None",
    scaling: float | None,
) -> "torch.Tensor":
    from torch.nn import functional as F

    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
    )


def _spelt_out(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    mask: "torch.Tensor | None",
    scaling: float | None,
    softcap: float | None,
    sinks: "torch.Tensor | None",
) -> "torch.Tensor":
    """Attend where no fused kernel computes what the model does."""
    import torch

    share = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(share, 1) for each in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    length = scores.shape[-1]
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=scores.device).tril_()
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    exact = torch.promote_types(scores.dtype, torch.float32)
    return scores.softmax(-1, dtype=exact)[..., :length].to(value.dtype) @ value
