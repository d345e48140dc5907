"""Open HTTP calls of an engine: which answer belongs to which prompt of whom.

Invariant: each prompt of a call is answered once; a call that is closed early names the requests to abort.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator

from workers.rollout.engines.requests import BadRequestError, Finished, Request
from workers.rollout.engines.wire import Choice, CompletionRequest


class Call:
    """One completions request: prompts out, choices in as they finish."""

    def __init__(self, model: str, requests: list[Request]) -> None:
        self.model = model
        self.requests = requests
        self.missing = {request.request_id: index for index, request in enumerate(requests)}
        self._arrived: list[Choice] = []
        self._signal = asyncio.Event()

    def settle(self, ended: Finished) -> None:
        """Take one answer in."""
        index = self.missing.pop(ended.request.request_id)
        self._arrived.append(Choice(index, ended.token_ids, ended.logprobs, ended.reason, ended.segments))
        self._signal.set()

    async def finished(self) -> AsyncIterator[list[Choice]]:
        """Yield the choices that finished since the last, until all have."""
        while self.missing or self._arrived:
            await self._signal.wait()
            self._signal.clear()
            arrived, self._arrived = self._arrived, []
            yield arrived


class Calls:
    """All open calls of an engine."""

    def __init__(self) -> None:
        self._by_request: dict[str, Call] = {}
        self._numbers = itertools.count(1)

    def open(self, asked: CompletionRequest) -> Call:
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
        call = Call(asked.model, _requests(asked, ids))
        for number in ids:
            self._by_request[number] = call
        return call

    def settle(self, ended: list[Finished]) -> None:
        """Hand answers to their calls; nobody waits any more for those of a closed call."""
        for answer in ended:
            call = self._by_request.pop(answer.request.request_id, None)
            if call is not None:
                call.settle(answer)

    def close(self, call: Call) -> set[str]:
        """Forget a call; return the ids that are still unanswered."""
        for number in call.missing:
            self._by_request.pop(number, None)
        return set(call.missing)


def _requests(asked: CompletionRequest, ids: list[str]) -> list[Request]:
    allowed, stop = tuple(asked.allowed_token_ids), tuple(asked.stop_token_ids)
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
            version=asked.version,
            digest=asked.digest,
            follow=asked.follow,
        )
        for number, prompt, seed in zip(ids, asked.prompt, asked.seeds, strict=True)
    ]
