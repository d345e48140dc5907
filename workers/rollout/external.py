"""Turns of agents that play with somebody else's model, behind an HTTP endpoint of the OpenAI chat-completions form.

Invariants. Who may be asked, with which secret, is said by `workers.external_access`. A turn is asked again after a
failure that may pass, until its deadline; what cannot pass fails it at once. A reply is reduced to words that the
environment knows and allows, and these are what is recorded and acted upon.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from flexmarl.contracts.specification.team import ExternalModel
from flexmarl.language.messages import Message
from workers.external_access import MAY_PASS, SAID, ExternalAccess, ExternalError, ExternalFailure, post, quoted
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.environments.base import Ask
from workers.rollout.turns import TurnReply, TurnRequest
from workers.vocabulary import Codec, UnknownWord

AGAIN_FIRST_S = 0.25
AGAIN_LAST_S = 8.0
CONNECTIONS = 32
"""Turns that one worker asks a host for at a time."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class ExternalClient:
    """Asks external endpoints for one run's turns."""

    def __init__(self, access: ExternalAccess) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def turn(
        self,
        model: ExternalModel,
        ask: Ask,
        request: TurnRequest,
        codec: Codec,
        deadline: float,
    ) -> TurnReply:
        """Answer one turn before `deadline` (monotonic seconds). Raises ExternalError."""
        began, pause = time.monotonic(), AGAIN_FIRST_S
        headers = self._access.headers(model.url, model.secret)
        body = _body(model, ask, request)
        last: ExternalError | None = None
        while True:
            left = min(model.timeout_s, deadline - time.monotonic())
            if left <= 0:
                raise ExternalError(
                    ExternalFailure.TIMEOUT, f"{model.model} returned no turn in time; last error: {last}"
                )
            try:
                said = await self._ask(model, headers, body, left)
                ids = said_ids(said, ask, request, codec)
                choice = CompletionChoice(0, ids, [0.0] * len(ids), "stop", [0, len(ids)])
                return TurnReply(choice, f"external:{model.model}", (time.monotonic() - began) * 1e3)
            except ExternalError as error:
                if error.code not in MAY_PASS:
                    raise
                last = error
            await asyncio.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))
            pause = min(AGAIN_LAST_S, 2 * pause)

    async def close(self) -> None:
        """Drop the connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, model: ExternalModel, headers: dict[str, str], body: bytes, left_s: float) -> str:
        url = model.url.rstrip("/") + "/chat/completions"
        answer = await post(self._open(), url, headers, body, left_s)
        try:
            said = msgspec.json.decode(answer, type=_Completion).choices[0].message.content
        except (msgspec.DecodeError, msgspec.ValidationError, IndexError) as error:
            text = f"no chat completion: {quoted(answer, headers)}"
            raise ExternalError(ExternalFailure.BAD_REPLY, text) from error
        return said or ""

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit_per_host=CONNECTIONS))
        return self._session


def _body(model: ExternalModel, ask: Ask, request: TurnRequest) -> bytes:
    max_tokens = request.max_tokens
    asked = {
        "model": model.model,
        "messages": _conversation(request) if ask.messages else _words(request.conversation, ask, max_tokens),
        "max_tokens": max_tokens if ask.messages else max(max_tokens * model.tokens_per_word, 1),
        "temperature": request.temperature,
        "seed": request.seed % 2**31,
    }
    sampling = request.sampling
    asked |= {"stop": list(sampling.stop)} if sampling.stop else {}
    asked |= {"top_p": sampling.top_p} if sampling.top_p < 1.0 else {}
    return msgspec.json.encode(asked)


def _conversation(request: TurnRequest) -> list[dict[str, Any]]:
    return [message.for_template() for message in request.conversation]


def _words(conversation: Sequence[Message], ask: Ask, max_tokens: int) -> list[dict[str, Any]]:
    """Return the messages that say what an agent is told, and which words a reply may hold."""
    rules = [f"Reply with at most {max_tokens} words, separated by blanks, and nothing else."]
    if ask.allowed:
        rules.append(f"Use only these words: {' '.join(ask.allowed)}.")
    if ask.stop:
        rules.append(f"End with one of: {' '.join(ask.stop)}.")
    told = " ".join([*(message.content for message in conversation), *rules])
    return [{"role": "system", "content": told}, {"role": "user", "content": ask.observation}]


def said_ids(said: str, ask: Ask, request: TurnRequest, codec: Codec) -> list[int]:
    """Return the ids of a reply as it is recorded. Raises ExternalError where an environment of words can use none."""
    if ask.messages:
        return codec.ids_of_text(said)[: codec.room(request.max_tokens)]
    return usable_ids(said, ask, codec, request.max_tokens)


def usable_ids(said: str, ask: Ask, codec: Codec, max_tokens: int) -> list[int]:
    """Return the ids of the words of a reply that the environment knows and allows, up to the first that ends it.

    Raises ExternalError when there is none.
    """
    ids: list[int] = []
    for word in said.split():
        if ask.allowed and word not in ask.allowed and word not in ask.stop:
            continue
        try:
            ids += codec.ids_of((word,))
        except UnknownWord:
            continue
        if word in ask.stop or len(ids) == max_tokens:
            break
    if not ids:
        raise ExternalError(ExternalFailure.NO_USABLE_WORD, f"replied {said[:SAID]!r}")
    return ids
