"""The state of live rows, as arrays on the host: what each feeds next, what it has made, when it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workers.rollout.engines import version_segments
from workers.rollout.engines.held_rows import Begin, HeldRows
from workers.rollout.engines.layout import Ints
from workers.rollout.engines.processors import penalise, truncate
from workers.rollout.engines.requests import Finished, ReplyProgress, Request
from workers.rollout.engines.wire import PLAIN
from workers.rollout.engines.word_rules import Bools, WordRules

if TYPE_CHECKING:
    import torch

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
        self._output.reserve(max(request.max_tokens for request in requests))
        for row, request in enumerate(requests, first):
            if request.done:
                self._output.begin(row, request.done, request.done_logprobs)
        self._rules.held.add(requests)
        self.requests += requests
        self.live += len(requests)
        return first

    def restrict(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Mask what a row may not say."""
        return self._rules.held.restrict(self._rules.words.restrict(logits, self._rule[: self.live]), self.requests)

    def append(self, tokens: Ints, logprobs: npt.NDArray[np.float32]) -> None:
        """Fold in one token per row."""
        n = self.live
        self._output.put(self.made[:n], tokens, logprobs)
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
        return Finished(request, ids, logprobs, reason or own, version)

    def parts(self, told: Mapping[str, int], version: int) -> list[ReplyProgress]:
        """Return what those of the rows that `told` counts have made beyond that."""
        found = []
        for row, request in enumerate(self.requests):
            at, made = told.get(request.request_id, -1), int(self.made[row])
            if 0 <= at < made:
                own = made - len(request.done)
                segments = version_segments.joined(request.done_segments, (version, own) if own > 0 else ())
                tokens, logprobs = self._output.get(row, at, made)
                found.append(
                    ReplyProgress(request.request_id, at, tokens, logprobs, version_segments.since(segments, at))
                )
        return found

    def handed_on(self, row: int, version: int) -> Request:
        """Return a row's request with what it has made so far, to be taken over by newer weights."""
        so_far = self.finished(row, "", version)
        return replace(
            so_far.request,
            done=tuple(so_far.token_ids),
            done_logprobs=tuple(so_far.logprobs),
            done_segments=tuple(so_far.segments),
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
    """Tokens and log-probabilities made so far, [row, token]."""

    def __init__(self, capacity: int) -> None:
        self.arrays = (np.zeros((capacity, 0), np.int64), np.zeros((capacity, 0), np.float32))
        self._rows = np.arange(capacity)

    def reserve(self, tokens: int) -> None:
        ids, logprobs = self.arrays
        more = tokens - ids.shape[1]
        if more > 0:
            more = max(more, ids.shape[1])
            self.arrays = (np.pad(ids, ((0, 0), (0, more))), np.pad(logprobs, ((0, 0), (0, more))))

    def put(self, at: Ints, tokens: Ints, logprobs: npt.NDArray[np.float32]) -> None:
        rows = self._rows[: len(at)]
        self.arrays[0][rows, at] = tokens
        self.arrays[1][rows, at] = logprobs

    def begin(self, row: int, tokens: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
        self.arrays[0][row, : len(tokens)] = tokens
        self.arrays[1][row, : len(tokens)] = logprobs

    def get(self, row: int, start: int, stop: int) -> tuple[list[int], list[float]]:
        return self.arrays[0][row, start:stop].tolist(), self.arrays[1][row, start:stop].tolist()
