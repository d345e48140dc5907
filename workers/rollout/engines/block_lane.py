"""A lane of a block-diffusion model: replies are made block by block, and each block in several steps.

A reply's blocks are counted from its first token, those of its prompt from the prompt's. A token sees its own block, in
both directions, and the blocks before it, which are done. A block begins as masks. A step computes the whole block once
and draws a token for each mask; it reveals those that are more probable than `confidence` and at least as many of the
most probable ones as leave the rest to the steps that remain. The others are drawn again. Once a block is done one more
pass keeps its keys and values for the next; none where it is the last.

Invariants: what is told of a token is the step that revealed it, and its log-probability in the distribution that it
was drawn from there; which tokens a step reveals is no part of that figure. A draw depends on (seed, place, step)
alone, so a reply that begins anew is the same. A reply is told whole or not at all: nobody can carry on half a block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flexmarl.contracts.specification.team import MOST_BLOCK
from workers.models.architecture import PAD, Denoising
from workers.rollout.engines import decoder
from workers.rollout.engines.cache import SpareCaches
from workers.rollout.engines.decoder import Weights
from workers.rollout.engines.grammars import Grammars
from workers.rollout.engines.lane import EngineLane
from workers.rollout.engines.layout import Ints
from workers.rollout.engines.requests import BadRequestError, Finished, ReplyProgress, Request
from workers.rollout.engines.rows import LiveRows
from workers.rollout.engines.sampling import draw, uniforms
from workers.rollout.engines.stop_strings import StopStrings
from workers.rollout.engines.wire import PLAIN
from workers.rollout.engines.word_rules import Bools

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float32]
UNFINISHED = ("abort", "out_of_memory", "nonfinite")


def check_whole(requests: Sequence[Request]) -> None:
    """Refuse what needs a reply from left to right. Raises BadRequestError."""
    for request in requests:
        wrong = {
            "stop": bool(request.stop),
            "sampling": request.sampling != PLAIN,
            "done": bool(request.done),
            "follow": request.follow in ("continue", "resume"),
        }
        for field in (field for field, refused in wrong.items() if refused):
            text = f"{field}: {request.policy} makes whole blocks, in no order of their tokens; send it without"
            raise BadRequestError(text, request_ids=[request.request_id])


class BlockRows(LiveRows):
    """Live rows whose `position` is where the block in work begins, and `made` what is done before it."""

    def __init__(self, capacity: int, weights: Weights, denoising: Denoising, device: str, grammars: Grammars) -> None:
        super().__init__(capacity, weights.vocabulary, device, grammars.begin)
        self._block = denoising.block
        self.steps: npt.NDArray[np.int16] = np.full((capacity, 0), -1, np.int16)
        """[row, token]: the step that revealed it, below 0 while it is masked."""
        self.step: Ints = np.zeros(capacity, np.int64)
        """Of the block in work"""

    def add(self, requests: list[Request]) -> int:
        first = super().add(requests)
        more = self._output.arrays[0].shape[1] - self.steps.shape[1]
        self.steps = np.pad(self.steps, ((0, 0), (0, max(0, more))), constant_values=-1)
        new = slice(first, first + len(requests))
        self.position[new] += 1  # the prompt is kept whole, and no token of it predicts the next one
        self.steps[new], self.step[new] = -1, 0
        return first

    def places(self) -> tuple[Ints, Bools]:
        """Return places in the replies [n, block] of the blocks in work, and which of them are within the reply."""
        places = self.made[: self.live, None] + np.arange(self._block)
        inside = places < self._limit[: self.live, None]
        return np.where(inside, places, 0), inside

    def shown(self) -> tuple[Ints, Bools]:
        """Return the ids [n, block] of the blocks in work, and which of them are masks that are to be revealed."""
        places, inside = self.places()
        rows = np.arange(self.live)[:, None]
        masked = inside & (self.steps[rows, places] < 0)
        return np.where(masked | ~inside, PAD, self._output.arrays[0][rows, places]), masked

    def rules(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Mask what the tokens [n * block] of the blocks may not be: words that are not allowed, and the mask."""
        logits[:, PAD] = -np.inf
        return self._rules.words.restrict(logits, self._rule[: self.live].repeat(self._block))

    def reveal(self, chosen: Bools, tokens: Ints, logprobs: Floats) -> None:
        """Take in those tokens [n, block] of a step that are `chosen`."""
        rows, columns = np.nonzero(chosen)
        places = self.made[rows] + columns
        ids, chances = self._output.arrays
        ids[rows, places], chances[rows, places] = tokens[rows, columns], logprobs[rows, columns]
        self.steps[rows, places] = self.step[rows]
        self.step[: self.live] += chosen.any(1)

    def advance(self, done: Bools) -> None:
        """Go on to the next block where one is done; the last one of a reply ends it."""
        moved = np.minimum(self._block, self._limit[: self.live] - self.made[: self.live]) * done
        self.made[: self.live] += moved
        self.position[: self.live] += moved
        self.step[: self.live][done] = 0

    def last_block(self) -> Bools:
        """Return which rows are in the last block of their reply."""
        return self.made[: self.live] + self._block >= self._limit[: self.live]

    def ended(self) -> Bools:
        return self.made[: self.live] >= self._limit[: self.live]

    def finished(self, row: int, reason: str, version: int) -> Finished:
        if reason in UNFINISHED:
            return Finished(self.requests[row], [], [], reason, version)
        found = super().finished(row, "length", version)
        return replace(found, steps=self.steps[row, : self.made[row]].tolist())

    def parts(self, told: Mapping[str, int], version: int) -> list[ReplyProgress]:
        return []

    def move(self, destinations: Ints, sources: Ints, live: int) -> None:
        for array in (self.steps, self.step):
            array[destinations] = array[sources]
        super().move(destinations, sources, live)


class BlockLane(EngineLane):
    rows: BlockRows

    def __init__(
        self,
        weights: Weights,
        version: int,
        digest: str,
        rows: int,
        device: str,
        spares: SpareCaches,
        stop_strings: StopStrings,
        grammars: Grammars,
        denoising: Denoising,
    ) -> None:
        super().__init__(weights, version, digest, rows, device, spares, stop_strings, grammars)
        self._denoising = denoising
        self.rows = BlockRows(rows, weights, denoising, device, grammars)

    def empty(self, rows: int) -> list[Finished]:
        ended = super().empty(rows)
        self.rows = BlockRows(rows, self.weights, self._denoising, self._device, self._grammars)
        return ended

    def step(self) -> tuple[list[Finished], int]:
        """Take one denoising step of every live row; return what ended and how many tokens were revealed."""
        if self._may_admit():
            self._admit()
        rows = self.rows
        _, masked = rows.shown()
        tokens, logprobs = self._computed()
        spoilt: Bools = np.asarray((masked & ~np.isfinite(logprobs)).any(1))
        chosen = self._chosen(masked & ~spoilt[:, None], logprobs)
        rows.reveal(chosen, tokens, logprobs)
        # A block that was done before this pass has left its keys and values by now; the last one needs to leave none.
        left = (masked & ~chosen).any(1)
        rows.advance(~masked.any(1) | (~left & rows.last_block()))
        found = []
        if spoilt.any():
            self._cache.clear(np.flatnonzero(spoilt))
            found = self._settle(spoilt, "nonfinite")
        ended = self.rows.ended()
        return found + (self._settle(ended) if ended.any() else []), int(chosen.sum())

    def _reserve(self, rows: int, longest: int) -> None:
        """Make room for whole blocks: the last one of a reply may reach past its end."""
        super()._reserve(rows, longest + self._denoising.block)

    def _prefill(self, requests: list[Request]) -> None:
        """Compute keys and values of whole prompts, once per different prompt."""
        import torch

        first = self.rows.add(requests)
        numbers: dict[tuple[int, ...], int] = {}
        copies = torch.tensor([numbers.setdefault(one.prompt, len(numbers)) for one in requests], device=self._device)
        length = max(map(len, numbers))
        ids, real = np.full((len(numbers), length), PAD), np.zeros((len(numbers), length), np.bool_)
        for prompt, number in numbers.items():
            ids[number, : len(prompt)], real[number, : len(prompt)] = prompt, True
        block = np.arange(length) // self._denoising.block
        visible = real[:, None] & (block[:, None] >= block)[None]
        where = torch.zeros(len(ids), dtype=torch.int64, device=self._device)
        decoder.denoise(self.weights, self._cache, first, self._on_device(ids), where, self._on_device(visible))
        for kept in (*self._cache.keys, *self._cache.values):
            kept[first : first + len(requests), :length] = kept[first + copies, :length]

    def _computed(self) -> tuple[Ints, Floats]:
        """Compute the blocks in work once, and draw a token for each of their places [n, block]."""
        import torch

        rows, n = self.rows, self.rows.live
        ids, _ = rows.shown()
        _, inside = rows.places()
        start, ends = rows.position[:n], rows.position[:n] + inside.sum(1)
        visible = self._on_device(np.arange(ends.max()) < ends[:, None])[:, None]
        x = decoder.denoise(self.weights, self._cache, 0, self._on_device(ids), self._on_device(start), visible)
        logits = rows.rules(decoder.logits(self.weights, x))
        counters = (rows.made[:n, None] + np.arange(ids.shape[1])) * MOST_BLOCK + rows.step[:n, None]
        uniform = uniforms(rows.seed[:n].repeat(ids.shape[1]), counters.ravel())
        heat = rows.temperature[:n].repeat(ids.shape[1])
        greedy = self._on_device(heat == 0.0)
        temperature = self._on_device(np.where(heat == 0.0, np.float32(1.0), heat))
        tokens, logprobs = draw(logits, self._on_device(uniform), temperature, greedy)
        found: tuple[torch.Tensor, ...] = (tokens.view(ids.shape).cpu(), logprobs.view(ids.shape).cpu())
        return found[0].numpy(), found[1].numpy()

    def _chosen(self, masked: Bools, logprobs: Floats) -> Bools:
        """Return which masks [n, block] a step reveals."""
        left = masked.sum(1)
        steps = np.maximum(1, self._denoising.steps - self.rows.step[: self.rows.live])
        least = -(-left // steps)
        order = np.argsort(np.where(masked, -logprobs, np.inf), axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(masked.shape[1])[None], 1)
        chosen: Bools = masked & (rank < least[:, None])
        if self._denoising.confidence is not None:
            chosen |= masked & (logprobs > np.log(self._denoising.confidence))
        return chosen

    def _on_device(self, table: npt.NDArray[np.generic]) -> "torch.Tensor":
        import torch

        return torch.from_numpy(table).to(self._device)
