"""Rows of block-diffusion policies as inputs in which each sampled token is predicted once, where it stood masked.

The two ways to give a token a log-probability:

- `dipo` (DiRL, arXiv 2512.22234): as in the step that revealed it, by the row's step map. The clean row comes first,
  and behind it a noisy copy of the reply for each step: in copy j a block shows what its steps before j revealed, and
  what step j revealed is predicted. All blocks go on at once, since each sees its own copy and the clean blocks before.
- `diffu_grpo` (d1, arXiv 2504.12216): all of the reply at once, from a prompt of which a share is masked. Masks depend
  on the run, the trained version and the prompt alone, so whatever is compared sees the same ones.

Invariants: each token of a reply is a loss position in one copy, and masked there; steps of a block count without gaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import structs

from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.specification.team import FactoryModel, PolicySpec
from flexmarl.contracts.wire import UNKNOWN_LOGPROB
from workers.models.architecture import PAD
from workers.training.wire import ID_BYTES, TrainRow

Ints = npt.NDArray[np.int64]
STEP_BYTES = 2
MASKED_SHARE = 0.15
"""Of a prompt, as in d1."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the tokens of inputs of one shape see: clean ones of earlier blocks, and those of their own block and copy.

    The T tokens of an input, of which `predicting` [R] are the places that predict the R tokens of a reply.
    """

    positions: Ints
    """[T]"""
    blocks: Ints
    """[T]: the number of each token's block; those of the reply follow those of the prompt."""
    copies: Ints
    """[T]: 0 for the clean row"""
    source: Ints
    """[T]: the place in the row of what stands at each place of an input, or would if it were not masked"""
    masked: npt.NDArray[np.bool_]
    """[T]"""
    predicting: Ints


@dataclass(frozen=True, slots=True)
class Unrolling:
    """How the rows of a policy are laid out."""

    block: int
    all_at_once: bool
    """diffu_grpo; else dipo"""
    seed: int
    """Of the run"""

    @classmethod
    def of(cls, policy: PolicySpec, seed: int) -> "Unrolling | None":
        """Return how a policy's rows are laid out; None: as they were read and said."""
        source = policy.source
        if not isinstance(source, FactoryModel) or not source.denoises:
            return None
        return cls(source.block, policy.log_probs == "diffu_grpo", derive(seed, "masks"))

    def fault(self, row: TrainRow) -> str:
        """Return why a row cannot be laid out; empty: it can."""
        tokens = len(row.response) // ID_BYTES
        if len(row.advantages) > 1:
            return "several turns; a row of a block-diffusion policy has one"
        if len(row.steps) != STEP_BYTES * tokens or (np.frombuffer(row.steps, "<i2") < 0).any():
            return "no step for each token; rows of a block-diffusion policy have a step map"
        return ""

    def prepared(self, rows: Sequence[TrainRow], vocabulary: int) -> list[TrainRow]:
        """Return rows as they are trained: no word may be the mask, and what an engine reported is the log-probability
        of another step map where all tokens are predicted at once."""
        words = np.delete(np.arange(vocabulary, dtype="<i4"), PAD).tobytes()
        found = [row if row.allowed else structs.replace(row, allowed=words) for row in rows]
        if not self.all_at_once:
            return found
        return [
            structs.replace(row, logprobs=np.full(len(row.response) // ID_BYTES, UNKNOWN_LOGPROB, "<f4").tobytes())
            for row in found
        ]

    def shape(self, row: TrainRow) -> tuple[int, ...]:
        """Return what rows of one `Sight` have in common besides their lengths."""
        return () if self.all_at_once else tuple(self._steps(row).tolist())

    def sight(self, row: TrainRow) -> Sight:
        """Return how a row is laid out, and all rows of its shape."""
        prompt, tokens = (len(ids) // ID_BYTES for ids in (row.prompt, row.response))
        before = -(-prompt // self.block)
        of_prompt, reply = np.arange(prompt), np.arange(tokens)
        own = reply // self.block
        block_of = np.concatenate([of_prompt // self.block, before + own])
        if self.all_at_once:
            parts, copies = [np.arange(prompt + tokens)], [0]
            masked = [block_of >= before]
            predicting = prompt + reply
        else:
            steps = self._steps(row)
            last = np.zeros(own[-1] + 1, np.int64)
            np.maximum.at(last, own, steps)
            parts, copies = [np.arange(prompt + self.block * own[-1])], [0]
            masked = [np.zeros(len(parts[0]), np.bool_)]
            predicting = np.zeros(tokens, np.int64)
            for step in range(int(last.max()) + 1):
                (shown,) = np.nonzero(last[own] >= step)
                (lost,) = np.nonzero(steps[shown] == step)
                predicting[shown[lost]] = sum(map(len, parts)) + lost
                parts.append(prompt + shown)
                copies.append(step + 1)
                masked.append(steps[shown] >= step)
        source = np.concatenate(parts)
        numbers = np.repeat(copies, [len(part) for part in parts])
        return Sight(source, block_of[source], numbers, source, np.concatenate(masked), predicting)

    def input_of(self, row: TrainRow, sight: Sight, version: int) -> bytes:
        """Return the ids of a row's input, int32 [T]."""
        ids = np.frombuffer(row.prompt + row.response, "<i4")
        masked = sight.masked
        if self.all_at_once:
            draws = np.random.default_rng(derive(self.seed, version, row.prompt.hex()))
            lost = draws.random(len(row.prompt) // ID_BYTES) < MASKED_SHARE
            masked = masked | np.pad(lost, (0, len(masked) - len(lost)))
        return np.where(masked, np.int32(PAD), ids[sight.source]).astype("<i4").tobytes()

    def _steps(self, row: TrainRow) -> Ints:
        """Return the step map of a row in which the steps of each block have no gaps."""
        steps = np.frombuffer(row.steps, "<i2").astype(np.int64)
        blocks = [steps[start : start + self.block] for start in range(0, len(steps), self.block)]
        return np.concatenate([steps, *(np.unique(block, return_inverse=True)[1] for block in blocks)])[len(steps) :]
