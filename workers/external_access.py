"""Whom workers may ask outside of the installation, and how a question there fails.

Invariants. Only hosts that this installation names are asked (`FLEXMARL_EXTERNAL_HOSTS`), and only they are sent a
secret; a specification names a secret and never holds one, and no error repeats one. Each failure has a name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

import aiohttp

CONNECT_S = 5.0
MAX_REPLY_BYTES = 2**20
SAID = 200
"""Characters of a foreign answer that a reason repeats."""


class ExternalFailure(StrEnum):
    """Why somebody else gave no answer that can be used."""

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
    """Somebody else gave no answer that can be used."""

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

    def headers(self, url: str, secret: str) -> dict[str, str]:
        """Return what proves who asks, with the secret of that name. Raises ExternalError where none may be asked."""
        host = urlsplit(url).netloc
        if host not in self.hosts:
            hint = f"{host} is not among FLEXMARL_EXTERNAL_HOSTS of the rollout worker"
            raise ExternalError(ExternalFailure.HOST_NOT_ALLOWED, hint)
        if not secret:
            return {}
        value = self.secrets.get(secret)
        if not value:
            hint = f"FLEXMARL_EXTERNAL_SECRET_{secret} is not set on the rollout worker"
            raise ExternalError(ExternalFailure.SECRET_MISSING, hint)
        return {"Authorization": f"Bearer {value}"}


async def post(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], body: bytes, left_s: float
) -> bytes:
    """Post JSON and return the answer of status 200. Raises ExternalError."""
    timeout = aiohttp.ClientTimeout(total=left_s, connect=CONNECT_S)
    sent = {"Content-Type": "application/json", **headers}
    try:
        async with session.post(url, data=body, headers=sent, timeout=timeout, allow_redirects=False) as response:
            answer = await _at_most(response, MAX_REPLY_BYTES)
            if response.status != 200:
                raise _refusal(response.status, answer, headers)
    except TimeoutError as error:
        raise ExternalError(ExternalFailure.TIMEOUT, f"no answer within {left_s:.1f} s") from error
    except aiohttp.ClientError as error:
        raise ExternalError(ExternalFailure.UNREACHABLE, type(error).__name__) from error
    return answer


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
    return ExternalError(code, f"status {status}: {quoted(answer, headers)}")


def quoted(answer: bytes, headers: Mapping[str, str]) -> str:
    """Repeat the beginning of a foreign answer, which might repeat what it was sent."""
    secret = headers.get("Authorization", "").removeprefix("Bearer ")
    text = answer.decode("utf-8", "replace")
    return (text.replace(secret, "[secret]") if secret else text)[:SAID]
