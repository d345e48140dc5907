"""The state of live rows, as arrays on the host: what each feeds next, what it has made, when it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.rollout.engines import version_segments
from workers.rollout.engines.held_rows import Begin, HeldRows
from workers.rollout.engines.layout import Ints
from workers.rollout.engines.processors import penalise, truncate
from workers.rollout.engines.requests import Finished, ReplyProgress, Request
from workers.rollout.engines.wire import PLAIN, UNCERTAINTIES
from workers.rollout.engines.word_rules import Bools, WordRules

if TYPE_CHECKING:
    import torch

Floats: TypeAlias = npt.NDArray[np.float32]
_SEED_BITS = (1 << 64) - 1


class LiveRows:
    """Rows 0..live are requests in generation. `position` is where `token`, the one to feed next, stands."""

    def __init__(self, capacity: int, vocabulary: int, device: str, begin: Begin) -> None:
        self.capacity = capacity
        self.live = 0
        self.requests: list[Request] = []
        self.position: Ints = np.zeros(capacity, np.int64)
        self.token: Ints = np.zeros(capacity, np.int64)
        self.made: Ints = np.zeros(capacity, np.int64)
        self.seed: npt.NDArray[np.uint64] = np.zeros(capacity, np.uint64)
        self.temperature: npt.NDArray[np.float32] = np.ones(capacity, np.float32)
        self._limit: Ints = np.zeros(capacity, np.int64)
        self._output = _Output(capacity)
        self._rules = _RowRules(WordRules(vocabulary, device), HeldRows(vocabulary, begin))
        self._rule: Ints = np.zeros(capacity, np.int64)

    def add(self, requests: list[Request]) -> int:
        """Append rows; return the first."""
        first = self.live
        if first == 0:
            self._rules.words.forget()
        new = slice(first, first + len(requests))
        self.position[new] = [len(request.context) - 1 for request in requests]
        self.token[new] = [request.context[-1] for request in requests]
        self.made[new] = [len(request.done) for request in requests]
        self.seed[new] = np.array([request.seed & _SEED_BITS for request in requests], np.uint64)
        self.temperature[new] = [request.temperature for request in requests]
        self._limit[new] = [request.max_tokens for request in requests]
        self._rule[new] = [self._rules.words.number(request) for request in requests]
        longest = max(request.max_tokens for request in requests)
        self._output.reserve(longest, any(request.sampling.uncertainty for request in requests))
        for row, request in enumerate(requests, first):
            if request.done:
                self._output.begin(row, request)
        self._rules.held.add(requests)
        self.requests += requests
        self.live += len(requests)
        return first

    def restrict(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Mask what a row may not say."""
        return self._rules.held.restrict(self._rules.words.restrict(logits, self._rule[: self.live]), self.requests)

    @property
    def tells_uncertainty(self) -> bool:
        """Whether a row is to tell how uncertain its tokens were."""
        return any(request.sampling.uncertainty for request in self.requests)

    def append(self, tokens: Ints, logprobs: Floats, uncertainty: Floats | None = None) -> None:
        """Fold in one token per row. `uncertainty`: [row, number], where a row is to tell it."""
        n = self.live
        self._output.put(self.made[:n], tokens, logprobs, uncertainty)
        self.made[:n] += 1
        self.position[:n] += 1
        self.token[:n] = tokens
        self._rules.held.append(tokens, self.requests)

    def ended(self) -> Bools:
        """Return which rows are at their end."""
        n = self.live
        return (self.made[:n] >= self._limit[:n]) | self._rules.words.stopped(self.token[:n], self._rule[:n])

    def last(self, row: int, tokens: int) -> list[int]:
        """Return the last tokens that a row has made, at most so many."""
        made = int(self.made[row])
        return self._output.get(row, max(0, made - tokens), made)[0]

    def processed(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Apply the parameters of rows that have some beside temperature and mask."""
        import torch

        asked = [request.sampling for request in self.requests]
        if all(each == PLAIN for each in asked):
            return logits
        for row in [row for row, each in enumerate(asked) if each.repetition_penalty != 1.0]:
            said = [*self.requests[row].prompt, *self.last(row, int(self.made[row]))]
            penalise(logits[row], said, asked[row].repetition_penalty)
        rows = [row for row, each in enumerate(asked) if each.truncates and self.temperature[row] > 0]
        if rows:
            settings = [[self.temperature[row], asked[row].min_p, asked[row].top_k, asked[row].top_p] for row in rows]
            heat, min_p, top_k, top_p = torch.tensor(settings, dtype=logits.dtype, device=logits.device).T
            logits[rows] = truncate(logits[rows], heat, min_p, top_k.long(), top_p)
        return logits

    def too_complex(self, row: int) -> bool:
        """Whether what a row must be exceeded the limits of its grammar."""
        return self._rules.held.too_complex(self.requests[row])

    def find(self, ids: set[str]) -> Bools:
        return np.fromiter((request.request_id in ids for request in self.requests), np.bool_, self.live)

    def finished(self, row: int, reason: str, version: int) -> Finished:
        """Return a row's answer. Without a reason given the row ended by itself."""
        ids, logprobs = self._output.get(row, 0, int(self.made[row]))
        request = self.requests[row]
        own = "stop" if ids and ids[-1] in request.stop else "length"
        return Finished(request, ids, logprobs, reason or own, version, uncertainty=self._uncertainty(row, 0))

    def parts(self, told: Mapping[str, int], version: int) -> list[ReplyProgress]:
        """Return what those of the rows that `told` counts have made beyond that."""
        found = []
        for row, request in enumerate(self.requests):
            at, made = told.get(request.request_id, -1), int(self.made[row])
            if 0 <= at < made:
                own = made - len(request.done)
                segments = version_segments.joined(request.done_segments, (version, own) if own > 0 else ())
                tokens, logprobs = self._output.get(row, at, made)
                new, uncertainty = version_segments.since(segments, at), self._uncertainty(row, at)
                found.append(ReplyProgress(request.request_id, at, tokens, logprobs, new, uncertainty))
        return found

    def _uncertainty(self, row: int, start: int) -> list[float]:
        """Return how uncertain a row's tokens were from one on; nothing where it is not to tell."""
        if not self.requests[row].sampling.uncertainty:
            return []
        return self._output.uncertainty_of(row, start, int(self.made[row]))

    def handed_on(self, row: int, version: int) -> Request:
        """Return a row's request with what it has made so far, to be taken over by newer weights."""
        so_far = self.finished(row, "", version)
        return replace(
            so_far.request,
            done=tuple(so_far.token_ids),
            done_logprobs=tuple(so_far.logprobs),
            done_segments=tuple(so_far.segments),
            done_uncertainty=tuple(so_far.uncertainty),
        )

    def move(self, destinations: Ints, sources: Ints, live: int) -> None:
        """Copy rows and keep the first `live`."""
        if destinations.size:
            arrays = (self.position, self.token, self.made, self.seed, self.temperature, self._limit, self._rule)
            for array in (*arrays, *self._output.arrays):
                array[destinations] = array[sources]
            moved = [self.requests[row] for row in sources]
            for row, request in zip(destinations, moved, strict=True):
                self.requests[row] = request
        del self.requests[live:]
        self.live = live
        self._rules.held.keep(self.requests)


@dataclass(frozen=True, slots=True)
class _RowRules:
    """What rows may say."""

    words: WordRules
    held: HeldRows


class _Output:
    """Tokens and log-probabilities made so far, [row, token], and how uncertain they were, [row, token, number], once
    somebody asks."""

    def __init__(self, capacity: int) -> None:
        self._ids: Ints = np.zeros((capacity, 0), np.int64)
        self._logprobs: Floats = np.zeros((capacity, 0), np.float32)
        self._uncertainty: Floats | None = None
        self._rows = np.arange(capacity)

    @property
    def arrays(self) -> tuple[Ints | Floats, ...]:
        """Return what has a place for each row."""
        held = (self._ids, self._logprobs)
        return held if self._uncertainty is None else (*held, self._uncertainty)

    def reserve(self, tokens: int, uncertain: bool) -> None:
        rows, there = self._ids.shape
        if uncertain and self._uncertainty is None:
            self._uncertainty = np.zeros((rows, there, UNCERTAINTIES), np.float32)
        more = tokens - there
        if more > 0:
            more = max(more, there)
            self._ids = np.pad(self._ids, ((0, 0), (0, more)))
            self._logprobs = np.pad(self._logprobs, ((0, 0), (0, more)))
            if self._uncertainty is not None:
                self._uncertainty = np.pad(self._uncertainty, ((0, 0), (0, more), (0, 0)))

    def put(self, at: Ints, tokens: Ints, logprobs: Floats, uncertainty: Floats | None) -> None:
        rows = self._rows[: len(at)]
        self._ids[rows, at] = tokens
        self._logprobs[rows, at] = logprobs
        if self._uncertainty is not None and uncertainty is not None:
            self._uncertainty[rows, at] = uncertainty

    def begin(self, row: int, request: Request) -> None:
        """Write down what was made of a reply before."""
        made = len(request.done)
        self._ids[row, :made] = request.done
        self._logprobs[row, :made] = request.done_logprobs
        if self._uncertainty is not None and request.sampling.uncertainty:
            self._uncertainty[row, :made] = np.reshape(request.done_uncertainty, (made, UNCERTAINTIES))

    def get(self, row: int, start: int, stop: int) -> tuple[list[int], list[float]]:
        return self._ids[row, start:stop].tolist(), self._logprobs[row, start:stop].tolist()

    def uncertainty_of(self, row: int, start: int, stop: int) -> list[float]:
        assert self._uncertainty is not None, "a row that tells made room for it"
        found: list[float] = self._uncertainty[row, start:stop].ravel().tolist()
        return found
