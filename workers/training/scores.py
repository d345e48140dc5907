"""Log-probability and entropy at the head of a language model, without the logits of more than a chunk.

Invariants: no table of more than `CHUNK` logits exists at a time, however many positions and words there are; what is
returned and its gradient are those of `log_softmax` over whole logits (tested). Where all positions fit one chunk, its
log-probabilities are kept for the backward pass; otherwise each chunk is computed again there, one product more, which
costs less than to write whole logits and read them.

Distributions are those the engine drew from: softmax over the allowed ids of logits divided by the temperature.
Logits are computed in the precision of the weights, and all that follows in fp32 at least; so is the head's gradient.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from workers.training.packing import FORBIDDEN

if TYPE_CHECKING:
    import torch

CHUNK = 2**22
"""Logits at a time: 16 MB of fp32."""
SLAB = 2048
"""Rows of the head's gradient that are added to at a time."""
ROUND = 16
"""Positions: in bf16 a chunk has a multiple of so many."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """m tokens whose log-probabilities are requested at n positions, and the sampling settings of each."""

    at: "torch.Tensor"
    """[m], ascending: the position of each token."""
    tokens: "torch.Tensor"
    """[m]"""
    temperature: "torch.Tensor | None" = None
    """[n, 1]; None: 1 everywhere."""
    masks: "torch.Tensor | None" = None
    """[sets, vocabulary]: added to logits."""
    mask_of: "torch.Tensor | None" = None
    """[n]: the row of `masks`."""
    bits: "torch.Tensor | None" = None
    """[kinds, bytes] uint8: further masks, a bit for each id, of the first one in the lowest."""
    bits_of: "torch.Tensor | None" = None
    """[n]: the row of `bits`."""


@dataclass(frozen=True, slots=True)
class Bend:
    """What a family does to the products z of its head before they are logits: cap tanh(scale z / cap)."""

    scale: float = 1.0
    cap: float | None = None
    """None: scale z."""

    def logits(self, products: "torch.Tensor") -> "torch.Tensor":
        """Return the logits of products, whose memory is used up."""
        if self.scale != 1.0:
            products.mul_(self.scale)
        return products if self.cap is None else products.div_(self.cap).tanh_().mul_(self.cap)

    def slope(self, by_logits: "torch.Tensor", logits: "torch.Tensor | None") -> "torch.Tensor":
        """Return the gradient by products of the one by logits, whose memory is used up; a cap needs the logits."""
        if self.cap is not None and logits is not None:
            by_logits.mul_(1.0 - (logits / self.cap).square())
        return by_logits if self.scale == 1.0 else by_logits.mul_(self.scale)


STRAIGHT = Bend()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Neighbouring positions with the tokens asked of them."""

    positions: slice
    tokens: slice


def scores(
    hidden: "torch.Tensor", head: "torch.Tensor", asked: ScoreRequest, bend: Bend = STRAIGHT
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return the log-probabilities [m] of the tokens asked for and the entropies [n] at `hidden` [n, width]."""
    apply = _function().apply
    found: tuple[torch.Tensor, torch.Tensor] = apply(hidden, head, asked, bend)  # type: ignore[no-untyped-call]
    return found


@cache
def _function() -> "type[torch.autograd.Function]":
    import torch

    class Scores(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, asked: ScoreRequest, bend: Bend) -> Any:
            logprobs, entropies, kept = [], [], None
            for chunk in _chunks(asked, hidden, len(head)):
                kept = _log_softmax(_logits(hidden, head, bend, chunk), asked, chunk)
                logprobs.append(kept[asked.at[chunk.tokens] - chunk.positions.start, asked.tokens[chunk.tokens]])
                entropies.append(_entropy(kept))
            entropy = torch.cat(entropies)
            whole = kept if len(entropies) == 1 and bend.cap is None else None
            ctx.asked, ctx.bend = asked, bend
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(hidden, head, entropy, whole)
            return torch.cat(logprobs), entropy

        @staticmethod
        def backward(ctx: Any, *above: torch.Tensor | None) -> Any:
            hidden, head, entropy, whole = ctx.saved_tensors
            of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
            of_head = torch.zeros_like(head, dtype=entropy.dtype) if ctx.needs_input_grad[1] else None
            for chunk in _chunks(ctx.asked, hidden, len(head)):
                logs, bent = whole, None
                if logs is None:
                    logits = _logits(hidden, head, ctx.bend, chunk)
                    bent = None if ctx.bend.cap is None else logits.clone()
                    logs = _log_softmax(logits, ctx.asked, chunk)
                slope = _slope(logs, ctx.asked, chunk, entropy, *above)
                slope = ctx.bend.slope(slope, bent).to(hidden.dtype)
                if of_hidden is not None:
                    torch.mm(slope, head, out=of_hidden[chunk.positions])
                if of_head is not None:
                    _add_product(of_head, slope.t(), hidden[chunk.positions])
            return of_hidden, None if of_head is None else of_head.to(head.dtype), None, None

    return Scores


def _chunks(asked: ScoreRequest, hidden: "torch.Tensor", vocabulary: int) -> Iterator[_Chunk]:
    """Cut positions into chunks of one size; their tokens are neighbours, since these ascend."""
    import torch

    positions, most = len(hidden), max(1, CHUNK // vocabulary)
    count = max(1, -(-positions * vocabulary // CHUNK))
    size = max(1, -(-positions // count))
    if hidden.dtype == torch.bfloat16 and most >= ROUND:  # few shapes, since each costs memory: see `layout`
        size = min(-(-size // ROUND), most // ROUND) * ROUND
    starts = torch.arange(0, positions + size, size).clamp(max=positions)
    firsts = torch.searchsorted(asked.at, starts.to(asked.at.device)).tolist()
    for (start, stop), (first, last) in zip(pairwise(starts.tolist()), pairwise(firsts), strict=True):
        yield _Chunk(slice(start, stop), slice(first, last))


def _logits(hidden: "torch.Tensor", head: "torch.Tensor", bend: Bend, chunk: _Chunk) -> "torch.Tensor":
    import torch

    products = hidden[chunk.positions] @ head.t()
    return bend.logits(products.float() if products.dtype in (torch.bfloat16, torch.float16) else products)


def _log_softmax(logits: "torch.Tensor", asked: ScoreRequest, chunk: _Chunk) -> "torch.Tensor":
    """Return the log-probabilities of a chunk's logits, whose memory is used up."""
    if asked.temperature is not None:
        logits.div_(asked.temperature[chunk.positions])
    if asked.masks is not None and asked.mask_of is not None:
        logits.add_(asked.masks[asked.mask_of[chunk.positions]])
    if asked.bits is not None and asked.bits_of is not None:
        refused = _refused(asked.bits[asked.bits_of[chunk.positions]], logits.shape[-1])
        logits.add_(refused.to(logits.dtype), alpha=FORBIDDEN)  # a fifth of the time that filling takes
    return logits.log_softmax(-1)


def _refused(bits: "torch.Tensor", words: int) -> "torch.Tensor":
    """Return [positions, words]: which ids packed masks [positions, bytes] leave out."""
    import torch

    places = torch.tensor([1 << place for place in range(8)], dtype=torch.uint8, device=bits.device)
    return (bits.unsqueeze(-1) & places).eq_(0).view(torch.bool).flatten(1)[:, :words]


def _entropy(logs: "torch.Tensor") -> "torch.Tensor":
    return logs.exp().mul_(logs).sum(-1).neg_()


def _slope(
    logs: "torch.Tensor",
    asked: ScoreRequest,
    chunk: _Chunk,
    entropy: "torch.Tensor",
    above_logprobs: "torch.Tensor | None",
    above_entropy: "torch.Tensor | None",
) -> "torch.Tensor":
    """Return the gradient by a chunk's logits, before they were divided by the temperature."""
    import torch

    slope = logs.exp()
    mine = asked.at[chunk.tokens] - chunk.positions.start
    shares = torch.zeros_like(entropy[chunk.positions])
    if above_logprobs is not None:
        shares.index_add_(0, mine, above_logprobs[chunk.tokens])
    if above_entropy is None:
        slope.mul_(-shares.unsqueeze(1))
    else:
        pull = above_entropy[chunk.positions].unsqueeze(1)
        slope.mul_((logs + entropy[chunk.positions].unsqueeze(1)).mul_(pull).add_(shares.unsqueeze(1)).neg_())
    if above_logprobs is not None:
        slope.index_put_((mine, asked.tokens[chunk.tokens]), above_logprobs[chunk.tokens], accumulate=True)
    if asked.temperature is not None:
        slope.div_(asked.temperature[chunk.positions])
    return slope


def _add_product(sum_: "torch.Tensor", left: "torch.Tensor", right: "torch.Tensor") -> None:
    """Add left @ right, which may be of a lower precision than the sum.

    Then it is added by `SLAB` rows, which a processor's caches hold: a whole product would be written to memory, read,
    written in the precision of the sum and read again.
    """
    if left.dtype == sum_.dtype:
        sum_.addmm_(left, right)
        return
    for start in range(0, len(left), SLAB):
        sum_[start : start + SLAB].add_(left[start : start + SLAB] @ right)
