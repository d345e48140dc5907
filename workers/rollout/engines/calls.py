"""Open HTTP calls of an engine: which answer belongs to which prompt of whom.

Invariant: each prompt of a call is answered once; a call that is closed early names the requests to abort. A call that
asked for progress gets each token once: in parts while its reply runs, the rest with the answer.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping

from workers.rollout.engines import version_segments
from workers.rollout.engines.requests import BadRequestError, Finished, ReplyProgress, Request
from workers.rollout.engines.wire import UNCERTAINTIES, CompletionChoice, CompletionRequest, Done

NOTHING_DONE = Done([], [], [])


class CompletionCall:
    """One completions request: prompts out, choices in as they finish."""

    def __init__(self, model: str, requests: list[Request], progress: bool = False) -> None:
        self.model = model
        self.requests = requests
        self.progress = progress
        self.told = {r.request_id: len(r.done) for r in requests if progress and r.follow != "restart_turn"}
        """Tokens of each reply that its client has. What may yet be thrown away is not told in parts."""
        self.missing = {request.request_id: index for index, request in enumerate(requests)}
        self._arrived: list[CompletionChoice] = []
        self._signal = asyncio.Event()

    def settle(self, ended: Finished, to: int) -> None:
        """Take one answer in; one that is handed back goes on at a lease that is named, if one is."""
        number = ended.request.request_id
        index, at = self.missing.pop(number), self.told.pop(number, 0)
        segments = version_segments.since(ended.segments, at) if at else ended.segments
        own = ended.token_ids[at:], ended.logprobs[at:]
        to, steps = to if ended.reason == "abort" else 0, list(ended.steps)
        uncertainty = ended.uncertainty[UNCERTAINTIES * at :]
        self._arrived.append(CompletionChoice(index, *own, ended.reason, segments, at, to, steps, uncertainty))
        self._signal.set()

    def tell(self, parts: list[ReplyProgress]) -> None:
        """Pass on what running replies made; without any the client still hears that they do."""
        for part in parts:
            self.told[part.request_id] = part.at + len(part.token_ids)
            index = self.missing[part.request_id]
            self._arrived.append(
                CompletionChoice(
                    index, part.token_ids, part.logprobs, "", part.segments, part.at, uncertainty=part.uncertainty
                )
            )
        self._signal.set()

    async def finished(self) -> AsyncIterator[list[CompletionChoice]]:
        """Yield what arrived since the last, until all have finished; nothing at all is a sign of life."""
        while self.missing or self._arrived:
            await self._signal.wait()
            self._signal.clear()
            arrived, self._arrived = self._arrived, []
            yield arrived


class Calls:
    """All open calls of an engine."""

    def __init__(self) -> None:
        self._by_request: dict[str, CompletionCall] = {}
        self._numbers = itertools.count(1)

    def open(self, asked: CompletionRequest) -> CompletionCall:
        """Name each prompt and remember whose it is."""
        count = len(asked.prompt)
        ids = asked.request_ids or [f"engine-{next(self._numbers)}" for _ in range(count)]
        if count == 0:
            raise BadRequestError("prompt: holds no prompts")
        if len(asked.seeds) != count:
            raise BadRequestError(f"seeds: {len(asked.seeds)} seeds for {count} prompts")
        if len(ids) != count or len(set(ids)) != count:
            raise BadRequestError(f"request_ids: must be {count} different ids, or absent")
        if any(number in self._by_request for number in ids):
            raise BadRequestError("request_ids: one of them is in use")
        if asked.done and len(asked.done) != count:
            raise BadRequestError(f"done: {len(asked.done)} of {count} prompts, or absent")
        call = CompletionCall(asked.model, _requests(asked, ids), asked.stream and asked.progress)
        for number in ids:
            self._by_request[number] = call
        return call

    def settle(self, ended: list[Finished], to: int = 0) -> None:
        """Hand answers to their calls, and where replies are to go on that are handed back.

        Nobody waits any more for those of a closed call.
        """
        for answer in ended:
            call = self._by_request.pop(answer.request.request_id, None)
            if call is not None:
                call.settle(answer, to)

    @property
    def watched(self) -> bool:
        """Whether a call wants to hear of progress."""
        return any(call.progress for call in self._by_request.values())

    def tell(self, made: Callable[[Mapping[str, int]], list[ReplyProgress]]) -> None:
        """Tell each call that wants to hear of it what its running replies made."""
        calls = {id(call): call for call in self._by_request.values() if call.progress}
        parts: dict[int, list[ReplyProgress]] = {number: [] for number in calls}
        told = {number: tokens for call in calls.values() for number, tokens in call.told.items()}
        for part in made(told):
            parts[id(self._by_request[part.request_id])].append(part)
        for number, call in calls.items():
            call.tell(parts[number])

    def close(self, call: CompletionCall) -> set[str]:
        """Forget a call; return the ids that are still unanswered."""
        for number in call.missing:
            self._by_request.pop(number, None)
        return set(call.missing)


def _requests(asked: CompletionRequest, ids: list[str]) -> list[Request]:
    allowed, stop = tuple(asked.allowed_token_ids), tuple(asked.stop_token_ids)
    so_far = asked.done or [NOTHING_DONE] * len(ids)
    return [
        Request(
            request_id=number,
            policy=asked.model,
            prompt=tuple(prompt),
            max_tokens=asked.max_tokens,
            seed=seed,
            temperature=asked.temperature,
            allowed=allowed,
            stop=stop,
            sampling=asked.sampling,
            version=asked.version,
            digest=asked.digest,
            follow=asked.follow,
            done=tuple(done.token_ids),
            done_logprobs=tuple(done.logprobs),
            done_segments=tuple(done.segments),
            done_uncertainty=tuple(done.uncertainty),
        )
        for number, prompt, seed, done in zip(ids, asked.prompt, asked.seeds, so_far, strict=True)
    ]
