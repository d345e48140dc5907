"""A lane generates with one version of one policy: its queue, its rows and, while there are any, its KV cache.

Invariants: a request runs from its first to its last token on this lane's weights; row i of every array below and row i
of the cache speak of the same request, for i below the number of live rows. One `step` admits, decodes one token for
each live row, and settles what ended: plan in numpy, compute in torch, fold back in numpy.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from workers.rollout.engines import decoder, invariant, layout
from workers.rollout.engines.cache import Cache, SpareCaches
from workers.rollout.engines.decoder import Weights
from workers.rollout.engines.grammars import Grammars
from workers.rollout.engines.requests import Finished, Request
from workers.rollout.engines.rows import LiveRows
from workers.rollout.engines.sampling import draw, uncertainty, uniforms
from workers.rollout.engines.stop_strings import StopStrings, tail_of
from workers.rollout.engines.wire import UNCERTAINTIES

if TYPE_CHECKING:
    import torch

ADMIT_SHARE = 8
"""Wait until this fraction (1/n) of the rows is free: a prefill costs about as much as a decode step, however small."""
ADMIT_AFTER_STEPS = 16
"""Never wait for more free rows longer than this."""
PREFILL_TOKENS = {"cpu": 1024, "cuda": 16_384}
"""Padded prompt tokens computed at once: on a CPU about what its caches hold, measured best; it bounds memory too."""


class EngineLane:
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
        ordered: bool = False,
    ) -> None:
        self.weights = weights
        self.version = version
        self.digest = digest
        self.waiting: deque[Request] = deque()
        self.rows = LiveRows(rows, weights.vocabulary, device, grammars.begin)
        self._grammars = grammars
        self._stop_strings = stop_strings
        self._device = device
        self._ordered = ordered
        self._cache = Cache(len(weights.layers), weights.architecture, device, weights.dtype, spares)
        self._since_admission = 0

    def tensors(self) -> "list[torch.Tensor]":
        """Return what the lane's weights and attention cache lie in; lanes may share some."""
        return [*_tensors(self.weights), *self._cache.keys, *self._cache.values]

    @property
    def busy(self) -> bool:
        """Whether requests wait or run."""
        return bool(self.waiting) or self.rows.live > 0

    def requests(self) -> list[Request]:
        """Return what waits and what runs."""
        return [*self.waiting, *self.rows.requests]

    def step(self) -> tuple[list[Finished], int]:
        """Advance every live row by one token; return what ended and how many tokens were made."""
        if self._may_admit():
            self._admit()
        spoilt = self._decode()
        found = [] if spoilt is None else self._give_up(spoilt)
        made = self.rows.live
        said = self._said_stop_strings()
        found += self._settle(said, "stop") if said.any() else []
        ended = self.rows.ended()
        return found + (self._settle(ended) if ended.any() else []), made

    def _said_stop_strings(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Return which rows have come to a stop string."""
        said = (
            bool(request.sampling.stop) and self._stop_strings.ended(request, self.rows.last(row, tail_of(request)))
            for row, request in enumerate(self.rows.requests)
        )
        return np.fromiter(said, np.bool_, self.rows.live)

    def abort(self, ids: set[str]) -> list[Finished]:
        """End requests now, with the tokens they have."""
        dropped = [request for request in self.waiting if request.request_id in ids]
        self.waiting = deque(request for request in self.waiting if request.request_id not in ids)
        settled = [
            Finished(
                request,
                list(request.done),
                list(request.done_logprobs),
                "abort",
                self.version,
                uncertainty=list(request.done_uncertainty),
            )
            for request in dropped
        ]
        ended = self.rows.find(ids)
        return settled + (self._settle(ended, "abort") if ended.any() else [])

    def empty(self, rows: int) -> list[Finished]:
        """End everything, with the tokens it has, and begin anew with so many rows and no cache."""
        ended = self.abort({request.request_id for request in self.requests()})
        self.rows = LiveRows(rows, self.weights.vocabulary, self._device, self._grammars.begin)
        self._cache.release()
        return ended

    def take_over(self, older: "EngineLane") -> None:
        """Carry on what runs or waits on older weights and is to follow newer ones; each in its own way."""
        self.waiting += [request for request in older.waiting if request.follow]
        older.waiting = deque(request for request in older.waiting if not request.follow)
        rows = older.rows
        following = np.fromiter((bool(request.follow) for request in rows.requests), np.bool_, rows.live)
        for row in np.flatnonzero(following):
            request = rows.requests[row]
            so_far = rows.handed_on(int(row), older.version)
            if request.follow == "continue" and self.rows.live < self.rows.capacity:
                self._adopt(so_far, older, int(row))
            else:
                self.waiting.append(request if request.follow == "restart_turn" else so_far)
        if following.any():
            older._tidy(~following)
            self._tidy()

    def _adopt(self, request: Request, older: "EngineLane", row: int) -> None:
        """Take a row over with its attention cache, which the older weights made."""
        length = len(request.context) - 1
        self._reserve(self.rows.live + 1, len(request.prompt) + request.max_tokens)
        own = self.rows.add([request])
        self._cache.copy_in([own], older._cache, [row], length)

    def _may_admit(self) -> bool:
        free = self.rows.capacity - self.rows.live
        if not self.waiting or free == 0:
            return False
        self._since_admission += 1
        enough = min(len(self.waiting), max(1, self.rows.capacity // ADMIT_SHARE))
        return free >= enough or self._since_admission > ADMIT_AFTER_STEPS

    def _admit(self) -> None:
        """Move waiting requests into free rows, shortest prompts first, so that equal lengths share a prefill."""
        self._since_admission = 0
        free = self.rows.capacity - self.rows.live
        chosen = [self.waiting.popleft() for _ in range(min(free, len(self.waiting)))]
        chosen.sort(key=lambda request: len(request.context), reverse=True)
        longest = max(len(request.prompt) + request.max_tokens for request in chosen)
        try:
            self._reserve(self.rows.live + len(chosen), longest)
            for part in _prefill_parts(chosen, PREFILL_TOKENS.get(self._device.partition(":")[0], 1024)):
                self._prefill(part)
        except BaseException:  # whoever ends this lane's requests finds each of them
            begun = {request.request_id for request in self.rows.requests}
            self.waiting.extendleft(request for request in chosen if request.request_id not in begun)
            raise
        self._tidy()

    def _reserve(self, rows: int, longest: int) -> None:
        """Make room in the cache; fixed shapes reach past the last row and up to the end of its length class."""
        wanted = _rounded(rows, self.rows.capacity)
        if self._ordered:
            wanted, longest = wanted + invariant.BLOCK, int(layout.capacity_of(np.array([longest]))[0])
        self._cache.reserve(wanted, longest, self.rows.live)

    def _prefill(self, requests: list[Request]) -> None:
        """Compute keys and values of all prompt tokens but the last, once per different prompt."""
        import torch

        first = self.rows.add(requests)
        numbers: dict[tuple[int, ...], int] = {}
        copies = [numbers.setdefault(request.context[:-1], len(numbers)) for request in requests]
        length = len(requests[0].context) - 1
        if length == 0:
            return
        if self._ordered:
            invariant.prefill(self.weights, self._cache, first, list(numbers), copies)
            return
        padded = np.zeros((len(numbers), length), np.int64)
        for prompt, number in numbers.items():
            padded[number, : len(prompt)] = prompt
        ids, of = torch.from_numpy(padded).to(self._device), torch.tensor(copies, device=self._device)
        decoder.prefill(self.weights, self._cache, first, ids, of)

    def _decode(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]] | None":
        """Plan, compute and fold back one token per live row; returns the rows whose token has no number, if any."""
        import torch

        rows, n = self.rows, self.rows.live
        if self._ordered and (np.diff(layout.capacity_of(rows.position[:n])) > 0).any():
            self._tidy()  # rows that grew into a longer class would cut the others into small blocks
        ids = torch.from_numpy(rows.token[:n]).to(self._device)
        positions = torch.from_numpy(rows.position[:n]).to(self._device)
        if self._ordered:
            logits = invariant.decode(self.weights, self._cache, ids, positions, rows.position[:n])
        else:
            parts = layout.segments(rows.position[:n] + 1)
            logits = decoder.decode(self.weights, self._cache, parts, ids, positions)
        logits = rows.processed(rows.restrict(logits))
        tokens, logprobs = self._draw(logits)
        chances = logprobs.cpu().numpy()
        uncertain = uncertainty(logits, self._heat()).cpu().numpy() if rows.tells_uncertainty else None
        rows.append(tokens.cpu().numpy(), chances, uncertain)
        finite = np.isfinite(chances)
        return None if finite.all() else ~finite

    def _give_up(self, spoilt: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> list[Finished]:
        """End rows whose last token has no log-probability, without that token. What they left would spoil others."""
        self._cache.clear(np.flatnonzero(spoilt))
        complex_ = np.fromiter(map(self.rows.too_complex, range(self.rows.live)), np.bool_, self.rows.live)
        beyond = {self.rows.requests[row].request_id for row in np.flatnonzero(spoilt & complex_)}
        ended = self._settle(spoilt, "nonfinite")
        return [
            replace(
                one,
                token_ids=one.token_ids[:-1],
                logprobs=one.logprobs[:-1],
                uncertainty=one.uncertainty[:-UNCERTAINTIES],
                reason="too_complex" if one.request.request_id in beyond else one.reason,
            )
            for one in ended
        ]

    def _draw(self, logits: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
        import torch

        rows, n = self.rows, self.rows.live
        uniform = torch.from_numpy(uniforms(rows.seed[:n], rows.made[:n])).to(self._device)
        heat = rows.temperature[:n]
        if (heat == 1.0).all() and not self._ordered:
            return draw(logits, uniform)
        greedy = torch.from_numpy(heat == 0.0).to(self._device)
        drawing = invariant.draw_in_blocks if self._ordered else draw
        return drawing(logits, uniform, self._heat(), greedy)

    def _heat(self) -> "torch.Tensor":
        """Return the temperature of each row's distribution: 1 where the likeliest token is taken."""
        import torch

        heat = self.rows.temperature[: self.rows.live]
        return torch.from_numpy(np.where(heat == 0.0, np.float32(1.0), heat)).to(self._device)

    def _settle(self, ended: "np.ndarray[tuple[int], np.dtype[np.bool_]]", reason: str = "") -> list[Finished]:
        """Take ended rows out and close the gaps."""
        found = [self.rows.finished(int(row), reason, self.version) for row in np.flatnonzero(ended)]
        self._tidy(~ended)
        return found

    def _tidy(self, live: "np.ndarray[tuple[int], np.dtype[np.bool_]] | None" = None) -> None:
        n = self.rows.live
        lengths = self.rows.position[:n]
        kept = np.ones(n, dtype=np.bool_) if live is None else live
        to, of = layout.moves(lengths, kept)
        if to.size:
            self._cache.move(to, of, int(lengths[of].max()))
        self.rows.move(to, of, int(kept.sum()))
        if self.rows.live == 0:
            self._cache.release()


def _rounded(wanted: int, limit: int) -> int:
    """Grow by doubling, so that the cache is copied a few times in its life."""
    return min(limit, max(8, 1 << (wanted - 1).bit_length()))


def _prefill_parts(requests: list[Request], tokens: int) -> Iterable[list[Request]]:
    """Cut requests, sorted by descending prompt length, into parts of bounded padded size."""
    part: list[Request] = []
    for request in requests:
        if part and (len(part) + 1) * len(part[0].context) > tokens:
            yield part
            part = []
        part.append(request)
    if part:
        yield part


def _tensors(value: object) -> "Iterator[torch.Tensor]":
    """Find the tensors that weights are made of."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "untyped_storage"):
        yield value  # type: ignore[misc]
