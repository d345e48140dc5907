"""The state of live rows, as arrays on the host: what each feeds next, what it has made, when it ends."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workers.rollout.engines.layout import Ints
from workers.rollout.engines.requests import Finished, Request

if TYPE_CHECKING:
    import torch

Bools = npt.NDArray[np.bool_]

_SEED_BITS = (1 << 64) - 1


class Rows:
    """Rows 0..live are requests in generation. `position` is where `token`, the one to feed next, stands."""

    def __init__(self, capacity: int, vocabulary: int, device: str) -> None:
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
        self._words = _Words(capacity, vocabulary, device)

    def add(self, requests: list[Request]) -> int:
        """Append rows; return the first."""
        first = self.live
        for row, request in enumerate(requests, start=first):
            self.position[row] = len(request.prompt) - 1
            self.token[row] = request.prompt[-1]
            self.made[row] = 0
            self.seed[row] = np.uint64(request.seed & _SEED_BITS)
            self.temperature[row] = request.temperature
            self._limit[row] = request.max_tokens
            self._words.set(row, request)
        self._output.reserve(max(request.max_tokens for request in requests))
        self.requests += requests
        self.live += len(requests)
        return first

    def restrict(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Mask what a row may not say."""
        return self._words.restrict(logits)

    def append(self, tokens: Ints, logprobs: npt.NDArray[np.float32]) -> None:
        """Fold in one token per row."""
        n = self.live
        self._output.put(self.made[:n], tokens, logprobs)
        self.made[:n] += 1
        self.position[:n] += 1
        self.token[:n] = tokens

    def ended(self) -> Bools:
        """Return which rows are at their end."""
        n = self.live
        return (self.made[:n] >= self._limit[:n]) | self._words.stopped(self.token[:n])

    def find(self, ids: set[str]) -> Bools:
        return np.fromiter((request.request_id in ids for request in self.requests), np.bool_, self.live)

    def finished(self, row: int, reason: str, version: int) -> Finished:
        """Return a row's answer. Without a reason given the row ended by itself."""
        ids, logprobs = self._output.get(row, int(self.made[row]))
        request = self.requests[row]
        own = "stop" if ids and ids[-1] in request.stop else "length"
        return Finished(request, ids, logprobs, reason or own, version)

    def move(self, destinations: Ints, sources: Ints, live: int) -> None:
        """Copy rows and keep the first `live`."""
        if destinations.size:
            arrays = (self.position, self.token, self.made, self.seed, self.temperature, self._limit)
            for array in (*arrays, *self._output.arrays):
                array[destinations] = array[sources]
            self._words.move(destinations, sources)
            moved = [self.requests[row] for row in sources]
            for row, request in zip(destinations, moved, strict=True):
                self.requests[row] = request
        del self.requests[live:]
        self.live = live


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

    def get(self, row: int, count: int) -> tuple[list[int], list[float]]:
        return self.arrays[0][row, :count].tolist(), self.arrays[1][row, :count].tolist()


class _Words:
    """Words a row may say, and words that end it. Nothing is kept or computed while no live row asks for it."""

    def __init__(self, capacity: int, vocabulary: int, device: str) -> None:
        self._shape = (capacity, vocabulary)
        self._device = device
        self._restricted = np.zeros(capacity, np.bool_)
        self._stops = np.zeros(capacity, np.bool_)
        self._mask: torch.Tensor | None = None
        self._stop: Bools | None = None

    def set(self, row: int, request: Request) -> None:
        import torch

        self._restricted[row] = bool(request.allowed)
        self._stops[row] = bool(request.stop)
        if request.allowed:
            if self._mask is None:
                self._mask = torch.zeros(self._shape, device=self._device)
            self._mask[row] = -torch.inf
            self._mask[row, list(request.allowed)] = 0.0
        elif self._mask is not None:
            self._mask[row] = 0.0
        if request.stop and self._stop is None:
            self._stop = np.zeros(self._shape, np.bool_)
        if self._stop is not None:
            self._stop[row] = False
            self._stop[row, list(request.stop)] = True

    def restrict(self, logits: "torch.Tensor") -> "torch.Tensor":
        n = len(logits)
        if self._mask is None or not self._restricted[:n].any():
            return logits
        return logits.add_(self._mask[:n])

    def stopped(self, tokens: Ints) -> Bools:
        n = len(tokens)
        if self._stop is None or not self._stops[:n].any():
            return np.zeros(n, np.bool_)
        return self._stop[np.arange(n), tokens]

    def move(self, destinations: Ints, sources: Ints) -> None:
        import torch

        for array in (self._restricted, self._stops, self._stop):
            if array is not None:
                array[destinations] = array[sources]
        if self._mask is not None:
            to, of = torch.from_numpy(destinations).to(self._device), torch.from_numpy(sources).to(self._device)
            self._mask[to] = self._mask[of]
