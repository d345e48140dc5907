"""One session with a resources server of NeMo Gym over HTTP: JSON in POSTs, held together by the server's cookies.

Invariants. Nothing is read without a bound. No redirect is followed, no proxy of the environment is used, and cookies
belong to one session. What a server says is read with the secret that it was sent taken out. A request is sent once,
except where the server says that it is full, which it says before it does anything.
Source: the package nemo-gym, versions 0.4 and 0.7.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import aiohttp

from workers.external_access import ExternalError, ExternalFailure, quoted
from workers.packages.inside.shapes import MOST_LINE, ProgramFault, TooLarge

AGAIN_S = (0.5, 1.0, 2.0, 5.0)
"""Pauses before a server that is full is asked again; the last one repeats."""
FULL = (429, 503)
"""Statuses by which a server, or what stands before it, takes no request now."""
MOST_COOKIES = 8192
"""Characters of the cookies of a session."""


@dataclass(frozen=True, slots=True)
class GymAnswer:
    status: int
    body: bytes

    @property
    def text(self) -> str:
        return storable(self.body.decode("utf-8", "replace"))


class GymSession:
    """A session. Requests may raise ExternalError, ProgramFault and TooLarge; deadlines are the caller's."""

    def __init__(self, http: aiohttp.ClientSession, url: str, proof: Mapping[str, str]) -> None:
        self._http, self._url, self._proof = http, url.rstrip("/"), proof
        self._cookies: dict[str, str] = {}
        self.full = False
        """The server takes no request now."""

    async def object(self, path: str, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object that a server answers with status 200."""
        answer = await self.ask(path, said)
        if answer.status != 200:
            code = ExternalFailure.SERVER_ERROR if answer.status >= 500 else ExternalFailure.REFUSED
            told = quoted(answer.body, self._proof)
            raise ExternalError(code, f"status {answer.status} at {path}: {told}")
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ProgramFault(f"garbage: its answer to {path} is no JSON object")
        return found

    async def ask(self, path: str, said: Mapping[str, Any]) -> GymAnswer:
        """Return what a server answers, with whatever status; one that is full is asked again."""
        pauses = chain(AGAIN_S, repeat(AGAIN_S[-1]))
        body = json.dumps(said).encode()
        while True:
            answer = await self._posted(path, body)
            self.full = answer.status in FULL
            if not self.full:
                return answer
            await asyncio.sleep(next(pauses))

    async def _posted(self, path: str, body: bytes) -> GymAnswer:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **self._proof}
        if self._cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        url = f"{self._url}{path}"
        try:
            async with self._http.post(url, data=body, headers=headers, allow_redirects=False) as response:
                if 300 <= response.status < 400:
                    told = f"status {response.status} at {path}; redirects are not followed, name the URL itself"
                    raise ExternalError(ExternalFailure.REFUSED, told)
                read = await _whole(response)
                self._keep(response)
                return GymAnswer(response.status, self._without_secret(read))
        except aiohttp.ClientConnectorError as error:
            raise ExternalError(ExternalFailure.UNREACHABLE, type(error).__name__) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            told = f"it closed the connection: {type(error).__name__}"
            raise ExternalError(ExternalFailure.UNREACHABLE, told) from error

    def _keep(self, response: aiohttp.ClientResponse) -> None:
        """Keep the cookies of an answer."""
        self._cookies |= {name: one.coded_value for name, one in response.cookies.items()}
        if sum(len(name) + len(value) for name, value in self._cookies.items()) > MOST_COOKIES:
            raise TooLarge(f"oversized: its cookies have more than {MOST_COOKIES} characters")

    def _without_secret(self, said: bytes) -> bytes:
        """Return what a server said, which may repeat what it was sent."""
        secret = self._proof.get("Authorization", "").removeprefix("Bearer ")
        if not secret:
            return said
        for form in (secret, json.dumps(secret)[1:-1]):
            said = said.replace(form.encode(), b"[secret]")
        return said


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """Read an answer. Raises TooLarge for one that is too long."""
    read = bytearray()
    async for chunk in response.content.iter_any():
        read += chunk
        if len(read) > MOST_LINE:
            raise TooLarge(f"oversized: its answer has more than {MOST_LINE} bytes")
    return bytes(read)


def storable(text: str) -> str:
    """Return a text without what PostgreSQL cannot keep."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
