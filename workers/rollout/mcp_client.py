"""One session with a server of the Model Context Protocol over its streamable HTTP transport: JSON-RPC in POSTs, each
answered by a JSON document or a stream of events.

Written to the protocol rather than to its SDK: that takes 2.5 s of processor time to import, brings a web server with
it, and bounds no JSON answer. Source: the revisions that have sessions, 2025-03-26 to 2025-11-25, of which
`initialize`, `tools/list`, `tools/call` and `ping` are spoken. The revision of 2026-07-28 has no sessions; servers that
speak it answer the older ones as well.

Invariants. Nothing is read without a bound. No redirect is followed, no proxy of the environment is used, and no cookie
is kept. What a server says is read with the secret that it was sent taken out. A request is sent once: a call may have
done something though its answer was lost.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import msgspec

from workers.external_access import CONNECT_S, ExternalError, ExternalFailure, quoted
from workers.packages.inside.rpc import KEPT, MOST_PAGES, NOT_KNOWN, PING_S, RequestRefused, ServerBroke
from workers.packages.inside.shapes import MOST_LINE
from workers.rollout.event_stream import EventStream

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Revisions that are spoken; the first is offered."""
SESSION, VERSION = "Mcp-Session-Id", "MCP-Protocol-Version"
KEEP_ALIVE_S = 2.0
"""Shorter than servers keep a connection that rests, so that no request meets one that is just being closed."""
SAID = 300
"""Characters of a foreign answer that a reason repeats."""
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}")


def connections(*traces: aiohttp.TraceConfig) -> aiohttp.ClientSession:
    """Return what the sessions of a run share. Close it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        auto_decompress=False,
        trust_env=False,
        trace_configs=list(traces),
    )


class McpClient:
    """A session. Every request may raise ServerBroke, ExternalError or RequestRefused; deadlines are the caller's."""

    def __init__(self, http: aiohttp.ClientSession, url: str, proof: Mapping[str, str]) -> None:
        self._http, self._url, self._proof = http, url, proof
        self._own: dict[str, str] = {}
        """Headers that name the session and its revision, once it has begun."""
        self._number = 0

    async def open(self) -> None:
        """Begin the session."""
        hello = {"protocolVersion": VERSIONS[0], "capabilities": {}, "clientInfo": {"name": "flexmarl", "version": "1"}}
        answer = await self.request("initialize", hello)
        if (version := answer.get("protocolVersion")) not in VERSIONS:
            spoken = ", ".join(VERSIONS)
            raise ServerBroke(f"garbage: it speaks revision {str(version)[:40]} of the protocol; spoken are {spoken}")
        self._own[VERSION] = str(version)
        await self._tell({"method": "notifications/initialized"})

    async def tools(self) -> list[dict[str, Any]]:
        """Return the tools as they are listed."""
        found: list[dict[str, Any]] = []
        asked: dict[str, Any] = {}
        for _ in range(MOST_PAGES):
            page = await self.request("tools/list", asked)
            tools = page.get("tools")
            if not isinstance(tools, list) or not all(isinstance(one, dict) for one in tools):
                raise ServerBroke("garbage: its tools are not a list of objects")
            found += tools
            if not (cursor := page.get("nextCursor")):
                return found
            asked = {"cursor": cursor}
        raise ServerBroke(f"oversized: its list of tools has more than {MOST_PAGES} pages")

    async def request(self, method: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        self._number += 1
        number = self._number
        sent = {"id": number, "method": method, "params": asked}
        async with self._posted(sent) as response:
            if response.status != 200:
                raise await self._refusal(response, number)
            if method == "initialize":
                self._begun(response)
            said = await self._answer(response, number, method)
        if "error" in said:
            raise RequestRefused(_told(said["error"]))
        result = said.get("result")
        if not isinstance(result, dict):
            raise ServerBroke(f"garbage: its answer to {method} is not an object")
        return result

    async def give_up(self) -> bool:
        """Say that the last request is not waited for any more; returns whether the server is well nevertheless."""
        late = {"requestId": self._number, "reason": "timeout"}
        try:
            async with asyncio.timeout(PING_S):
                await self._tell({"method": "notifications/cancelled", "params": late})
                await self.request("ping", {})
        except (TimeoutError, ServerBroke, ExternalError):
            return False
        except RequestRefused:  # a server need not know it
            return True
        return True

    async def close(self) -> None:
        """End the session; a server that keeps none, or lets nobody end one, is left."""
        if SESSION not in self._own:
            return
        headers = {**self._proof, **self._own}
        with _named():
            async with self._http.delete(self._url, headers=headers, allow_redirects=False) as response:
                if response.status >= 400 and response.status not in (404, 405):
                    raise ServerBroke(f"status {response.status} to the end of the session")

    def _begun(self, response: aiohttp.ClientResponse) -> None:
        """Note the name of the session; a server without sessions gives none."""
        if (name := response.headers.get(SESSION)) is not None:
            if not _SESSION_ID.fullmatch(name):
                raise ServerBroke("garbage: its session id is not visible ASCII")
            self._own[SESSION] = name

    @asynccontextmanager
    async def _posted(self, said: Mapping[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            **self._proof,
            **self._own,
        }
        body = json.dumps({"jsonrpc": "2.0", **said}).encode()
        with _named():
            async with self._http.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                yield response

    async def _tell(self, said: Mapping[str, Any]) -> None:
        """Say what has no answer."""
        async with self._posted(said) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response, None)

    async def _answer(self, response: aiohttp.ClientResponse, number: int, method: str) -> dict[str, Any]:
        """Return the message that answers a request, in whichever form it comes."""
        kind = response.content_type
        if kind == "text/event-stream":
            async with aclosing(EventStream(response.content.iter_any()).events()) as events:
                async for event in events:
                    for message in _messages(self._without_secret(event)):
                        if "method" in message and "id" in message:
                            await self._serve(message)
                        elif message.get("id") == number:
                            return message
            raise ServerBroke(f"its stream ended without an answer to {method}")
        if kind != "application/json":
            raise ServerBroke(f"garbage: its answer to {method} is {kind[:80]}, neither JSON nor a stream of events")
        body = self._without_secret(await _whole(response))
        for message in _messages(body):
            if message.get("id") == number and "method" not in message:
                return message
        raise ServerBroke(f"garbage: its answer to {method} is not a JSON-RPC answer: {_text(body)}")

    async def _serve(self, asked: Mapping[str, Any]) -> None:
        """Answer what a server asks: it is told that this is there, and of nothing else."""
        if asked["method"] == "ping":
            await self._tell({"id": asked["id"], "result": {}})
        else:
            refused = {"code": NOT_KNOWN, "message": f"{asked['method']} is not offered"}
            await self._tell({"id": asked["id"], "error": refused})

    async def _refusal(self, response: aiohttp.ClientResponse, number: int | None) -> Exception:
        """Return what a status other than 200 means."""
        status, begun = response.status, SESSION in self._own
        if 300 <= status < 400:
            where = _text(response.headers.get("Location", "").encode())
            told = f"status {status} to {where or 'nowhere'}; redirects are not followed, name the URL itself"
            return ExternalError(ExternalFailure.REFUSED, told)
        if status == 404 and begun:
            return ServerBroke("the server knows its session no more (status 404)")
        body = self._without_secret(await _whole(response))
        if status == 400 and number is not None:  # so some servers say that arguments are wrong
            for message in _messages(body):
                if message.get("id") == number and "error" in message:
                    return RequestRefused(_told(message["error"]))
        code = ExternalFailure.REFUSED
        if status == 429:
            code = ExternalFailure.RATE_LIMITED
        elif status >= 500:
            code = ExternalFailure.SERVER_ERROR
        return ExternalError(code, f"status {status}: {quoted(body, self._proof)}")

    def _without_secret(self, said: bytes) -> bytes:
        """Return what a server said, which may repeat what it was sent."""
        secret = self._proof.get("Authorization", "").removeprefix("Bearer ")
        if not secret:
            return said
        for form in (secret, json.dumps(secret)[1:-1]):
            said = said.replace(form.encode(), b"[secret]")
        return said


@contextmanager
def _named() -> Iterator[None]:
    """Name what goes wrong on the way to a server. Raises ExternalError or ServerBroke."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise ExternalError(ExternalFailure.UNREACHABLE, type(error).__name__) from error
    except aiohttp.ClientError as error:
        raise ServerBroke(f"its server closed the connection: {type(error).__name__}") from error


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """Read a document. Raises ServerBroke for one that is too long."""
    read = bytearray()
    async for chunk in response.content.iter_any():
        read += chunk
        if len(read) > MOST_LINE:
            raise ServerBroke(f"oversized: an answer of more than {MOST_LINE} bytes")
    return bytes(read)


def _messages(said: bytes) -> list[dict[str, Any]]:
    """Return the messages of a document; none where it is none, which clients of the protocol skip."""
    try:
        read = msgspec.json.decode(said)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [one for one in (read if isinstance(read, list) else [read]) if isinstance(one, dict)]


def _told(error: object) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)[:KEPT]


def _text(said: bytes) -> str:
    return said.decode("utf-8", "replace")[:SAID]
