"""One member's way to the exchange: signed requests, and failures with a name."""

import time
from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec

from flexmarl.contracts.shared_rollouts import (
    CONTENT,
    MAX_BODY,
    MEMBER,
    SIGNATURE,
    TIME,
    Answer,
    Post,
    SharedRollout,
    content_of,
    signature,
)
from workers.exchange.access import ExchangeAccess

PATH = "/v1/rollouts"
TIMEOUT_S = 10.0


class ExchangeFailure(StrEnum):
    """Why the exchange did not do what it was asked."""

    UNREACHABLE = "unreachable"
    NOT_ADMITTED = "not_admitted"
    THROTTLED = "throttled"
    REFUSED = "refused"
    BAD_ANSWER = "bad_answer"


class ExchangeError(Exception):
    """The exchange did not do what it was asked."""

    def __init__(self, code: ExchangeFailure, detail: str, again_s: float = 0.0) -> None:
        super().__init__(code, detail)
        self.code, self.detail, self.again_s = code, detail, again_s

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class ExchangeClient:
    """Posts and reads rollouts; no request takes longer than `TIMEOUT_S`."""

    def __init__(self, access: ExchangeAccess) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def post(self, task_set: str, rollouts: Sequence[SharedRollout]) -> None:
        """Publish rollouts; what is there already counts once. Raises ExchangeError."""
        await self._ask("POST", PATH, msgspec.json.encode(Post(task_set, list(rollouts))))

    async def read(self, task_set: str, after: int) -> Answer:
        """Return what others published behind a position. Raises ExchangeError."""
        said = await self._ask("GET", f"{PATH}?{urlencode({'task_set': task_set, 'after': after})}", b"")
        try:
            answer = msgspec.json.decode(said, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ExchangeError(ExchangeFailure.BAD_ANSWER, str(error)[:200]) from error
        if answer.next < after or (answer.rollouts and answer.next == after):
            raise ExchangeError(ExchangeFailure.BAD_ANSWER, f"its position went back from {after} to {answer.next}")
        return answer

    async def close(self) -> None:
        """Drop the connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, target: str, body: bytes) -> bytes:
        if not self._access.url:
            raise ExchangeError(ExchangeFailure.NOT_ADMITTED, "FLEXMARL_EXCHANGE_URL is not set on rollout workers")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        access, at = self._access, str(int(time.time()))
        url = access.url + target
        path = urlsplit(url)
        signed = f"{path.path}?{path.query}" if path.query else path.path
        content = content_of(body)
        headers = {
            MEMBER: access.member, TIME: at, CONTENT: content, "Content-Type": "application/json",
            SIGNATURE: signature(access.key, method, signed, at, content),
        }  # fmt: skip
        try:
            async with self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as answer:
                said = bytearray()
                async for part in answer.content.iter_any():
                    said += part
                    if len(said) > MAX_BODY:
                        raise ExchangeError(ExchangeFailure.BAD_ANSWER, f"an answer of more than {MAX_BODY} bytes")
                if answer.status != 200:
                    raise _failure(answer.status, answer.headers.get("Retry-After", ""), bytes(said))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ExchangeError(ExchangeFailure.UNREACHABLE, type(error).__name__) from error
        return bytes(said)


def _failure(status: int, again: str, said: bytes) -> ExchangeError:
    text = f"status {status}: {said.decode('utf-8', 'replace')[:200]}"
    if status == 429:
        return ExchangeError(ExchangeFailure.THROTTLED, text, float(again) if again.isdecimal() else 60.0)
    if status == 401:
        return ExchangeError(ExchangeFailure.NOT_ADMITTED, text)
    return ExchangeError(ExchangeFailure.UNREACHABLE if status >= 500 else ExchangeFailure.REFUSED, text)
