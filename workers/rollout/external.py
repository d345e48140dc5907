"""Turns of agents that play with somebody else's model, behind an HTTP endpoint of the OpenAI chat-completions form.

Invariants. Only hosts that this installation names are asked (`FLEXMARL_EXTERNAL_HOSTS`), and only they are sent a
secret; a specification names a secret and never holds one, and no error repeats one. A turn is asked again after a
failure that may pass, until its deadline; what cannot pass fails it at once. Each failure has a name. A reply is
reduced to words that the environment knows and allows, and these are what is recorded and acted upon.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

import aiohttp
import msgspec

from flexmarl.contracts.spec.team import ExternalModel
from workers.rollout.engines.wire import Choice
from workers.rollout.environments.base import Ask
from workers.rollout.turns import TurnReply
from workers.vocabulary import Codec, UnknownWord

AGAIN_FIRST_S = 0.25
AGAIN_LAST_S = 8.0
CONNECT_S = 5.0
MAX_REPLY_BYTES = 2**20
CONNECTIONS = 32
"""Turns that one worker asks a host for at a time."""
SAID = 200
"""Characters of a foreign answer that a reason repeats."""


class ExternalFailure(StrEnum):
    """Why an external agent gave no turn."""

    HOST_NOT_ALLOWED = "host_not_allowed"
    SECRET_MISSING = "secret_missing"
    REFUSED = "refused"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    UNREACHABLE = "unreachable"
    BAD_REPLY = "bad_reply"
    NO_USABLE_WORD = "no_usable_word"
    TIMEOUT = "timeout"


MAY_PASS = frozenset({ExternalFailure.RATE_LIMITED, ExternalFailure.SERVER_ERROR, ExternalFailure.UNREACHABLE})


class ExternalError(Exception):
    """An external agent gave no turn."""

    def __init__(self, code: ExternalFailure, detail: str) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ExternalAccess:
    """What this installation lets its workers ask."""

    hosts: frozenset[str] = frozenset()
    """host or host:port"""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


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
        codec: Codec,
        max_tokens: int,
        temperature: float,
        seed: int,
        deadline: float,
    ) -> TurnReply:
        """Answer one turn before `deadline` (monotonic seconds). Raises ExternalError."""
        began, pause = time.monotonic(), AGAIN_FIRST_S
        headers = self._headers(model)
        body = _body(model, ask, max_tokens, temperature, seed)
        last: ExternalError | None = None
        while True:
            left = min(model.timeout_s, deadline - time.monotonic())
            if left <= 0:
                raise ExternalError(ExternalFailure.TIMEOUT, f"{model.model} gave no turn in time; last: {last}")
            try:
                said = await self._ask(model, headers, body, left)
                ids = usable_ids(said, ask, codec, max_tokens)
                choice = Choice(0, ids, [0.0] * len(ids), "stop", [0, len(ids)])
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

    def _headers(self, model: ExternalModel) -> dict[str, str]:
        host = urlsplit(model.url).netloc
        if host not in self._access.hosts:
            hint = f"{host} is not among FLEXMARL_EXTERNAL_HOSTS of the rollout worker"
            raise ExternalError(ExternalFailure.HOST_NOT_ALLOWED, hint)
        if not model.secret:
            return {}
        secret = self._access.secrets.get(model.secret)
        if not secret:
            hint = f"FLEXMARL_EXTERNAL_SECRET_{model.secret} is not set on the rollout worker"
            raise ExternalError(ExternalFailure.SECRET_MISSING, hint)
        return {"Authorization": f"Bearer {secret}"}

    async def _ask(self, model: ExternalModel, headers: dict[str, str], body: bytes, left_s: float) -> str:
        url = model.url.rstrip("/") + "/chat/completions"
        timeout = aiohttp.ClientTimeout(total=left_s, connect=CONNECT_S)
        try:
            async with self._open().post(
                url,
                data=body,
                headers={"Content-Type": "application/json", **headers},
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                answer = await _at_most(response, MAX_REPLY_BYTES)
                if response.status != 200:
                    raise _refusal(response.status, answer, headers)
        except TimeoutError as error:
            raise ExternalError(ExternalFailure.TIMEOUT, f"no answer within {left_s:.1f} s") from error
        except aiohttp.ClientError as error:
            raise ExternalError(ExternalFailure.UNREACHABLE, type(error).__name__) from error
        try:
            said = msgspec.json.decode(answer, type=_Completion).choices[0].message.content
        except (msgspec.DecodeError, msgspec.ValidationError, IndexError) as error:
            text = f"no chat completion: {_quoted(answer, headers)}"
            raise ExternalError(ExternalFailure.BAD_REPLY, text) from error
        return said or ""

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit_per_host=CONNECTIONS))
        return self._session


def _body(model: ExternalModel, ask: Ask, max_tokens: int, temperature: float, seed: int) -> bytes:
    rules = [f"Reply with at most {max_tokens} words, separated by blanks, and nothing else."]
    if ask.allowed:
        rules.append(f"Use only these words: {' '.join(ask.allowed)}.")
    if ask.stop:
        rules.append(f"End with one of: {' '.join(ask.stop)}.")
    instruction = " ".join(filter(None, [model.instruction, *rules]))
    asked = {
        "model": model.model,
        "messages": [{"role": "system", "content": instruction}, {"role": "user", "content": ask.observation}],
        "max_tokens": max(max_tokens * model.tokens_per_word, 1),
        "temperature": temperature,
        "seed": seed % 2**31,
    }
    return msgspec.json.encode(asked)


async def _at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read an answer; one that does not end is cut off, so it will not parse."""
    read = bytearray()
    async for chunk in response.content.iter_any():
        read += chunk
        if len(read) > limit:
            break
    return bytes(read[:limit])


def _refusal(status: int, answer: bytes, headers: Mapping[str, str]) -> ExternalError:
    if status == 429:
        code = ExternalFailure.RATE_LIMITED
    elif status >= 500:
        code = ExternalFailure.SERVER_ERROR
    else:
        code = ExternalFailure.REFUSED
    return ExternalError(code, f"status {status}: {_quoted(answer, headers)}")


def _quoted(answer: bytes, headers: Mapping[str, str]) -> str:
    """Repeat the beginning of a foreign answer, which might repeat what it was sent."""
    secret = headers.get("Authorization", "").removeprefix("Bearer ")
    text = answer.decode("utf-8", "replace")
    return (text.replace(secret, "[secret]") if secret else text)[:SAID]


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
