"""Servers of tools behind URLs, of one run in one rollout worker: which tools they offer, and a session for each
episode that calls one.

Invariants. What agents are shown is what was pinned for the run when a worker asked first; a server that does not list
it so any more fails each episode by name, since its agents would be shown one tool and call another. A session belongs
to one episode: it begins with the episode's first call, is ended with it in whatever way that ends, and one that the
server lost is not begun again behind the agent's back.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
import structlog
from pydantic import TypeAdapter, ValidationError

from flexmarl.contracts.package_manifests import OfferedTool
from flexmarl.contracts.specification.tools import McpUrl, PinnedTool
from flexmarl.language.messages import ToolCall
from workers.external_access import ExternalAccess, ExternalError
from workers.packages.inside.rpc import RequestRefused, ServerBroke
from workers.packages.inside.servers import tool_of
from workers.packages.inside.tooling import text_of
from workers.rollout.isolation.lines import ToolResult
from workers.rollout.isolation.processes import EnvironmentBroke
from workers.rollout.mcp_client import McpClient, connections

log = structlog.get_logger(__name__)

MOST_TOOLS = 128
"""Of a server, as of one of a package."""
SHOWN = 10
_TOOLS = TypeAdapter(tuple[PinnedTool, ...])
Pin = Callable[[str], Awaitable[str]]
"""Pins tools for the run, as JSON; returns those that are pinned."""


@dataclass(slots=True)
class UrlToolPool:
    """The sessions with one server. Used from one event loop."""

    spec: McpUrl
    access: ExternalAccess
    pin: Pin
    result_characters: int
    _http: aiohttp.ClientSession | None = None
    _listing: "asyncio.Task[tuple[PinnedTool, ...]] | None" = None
    """The one question for the tools; whoever needs them waits for it."""
    _closing: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def tools(self) -> tuple[PinnedTool, ...]:
        """Return the tools of the run, which the server is asked for once. Raises EnvironmentBroke."""
        if self._listing is None or (self._listing.done() and _failed(self._listing)):
            self._listing = asyncio.get_running_loop().create_task(self._pinned())
        return await asyncio.shield(self._listing)

    async def begin(self) -> "UrlToolSession":
        """Begin a session, with a server that still has the tools of the run. Raises EnvironmentBroke."""
        pinned = await self.tools()
        client, listed = await self.opened()
        if changed := _changed(pinned, listed):
            self.left(client)
            raise EnvironmentBroke(f"boot: its tools changed since the run began: {changed}")
        return UrlToolSession(self, client)

    async def opened(self) -> tuple[McpClient, dict[str, PinnedTool]]:
        """Begin a session and list the tools that prompts can have. Raises EnvironmentBroke."""
        limit = self.spec.setup_timeout_s
        client: McpClient | None = None
        try:
            proof = self.access.headers(self.spec.url, self.spec.secret)
            if self._http is None:
                self._http = connections()
            client = McpClient(self._http, self.spec.url, proof)
            async with asyncio.timeout(limit):
                await client.open()
                return client, _usable(await client.tools())
        except BaseException as error:  # cancelled, too: the server may have begun a session that nobody would end
            if client is not None:
                self.left(client)
            match error:
                case TimeoutError():
                    raise EnvironmentBroke(f"boot: no answer within {limit:g} s") from error
                case RequestRefused():
                    raise EnvironmentBroke(f"boot: it refused a session: {error}") from error
                case ServerBroke() | ExternalError():
                    raise EnvironmentBroke(f"boot: {error}") from error
            raise

    def left(self, client: McpClient) -> None:
        """End a session that nobody uses any more, without waiting for it."""
        closing = asyncio.get_running_loop().create_task(self._closed(client))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End every session that is still being ended, and drop the connections."""
        if self._listing is not None and not self._listing.done():
            self._listing.cancel()
            await asyncio.wait([self._listing])
        if self._closing:
            await asyncio.wait(self._closing)
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _pinned(self) -> tuple[PinnedTool, ...]:
        client, listed = await self.opened()
        self.left(client)
        for name in self.spec.only:
            if name not in listed:
                has = ", ".join(list(listed)[:SHOWN]) or "none"
                raise EnvironmentBroke(f"boot: it has no tool {name}, which only names; it has {has}")
        shown = [tool for name, tool in listed.items() if not self.spec.only or name in self.spec.only]
        if not shown:
            raise EnvironmentBroke("boot: it lists no tool that prompts can have")
        written = json.dumps([tool.model_dump(mode="json") for tool in shown], ensure_ascii=False)
        pinned = _TOOLS.validate_json(await self.pin(written))
        if changed := _changed(pinned, listed):
            raise EnvironmentBroke(f"boot: its tools changed since the run began: {changed}")
        return pinned

    async def _closed(self, client: McpClient) -> None:
        try:
            async with asyncio.timeout(self.spec.close_timeout_s):
                await client.close()
        except (TimeoutError, ServerBroke, ExternalError) as error:
            reason = str(error) or f"no answer within {self.spec.close_timeout_s:g} s"
            log.warning("session with tools not closed", server=self.spec.url, reason=reason)


@dataclass(slots=True)
class UrlToolSession:
    """The session of one episode. Leave it in every case."""

    pool: UrlToolPool
    client: McpClient

    async def call(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Make calls, one after the other. Raises EnvironmentBroke where the server is broken."""
        try:
            return [await self._called(call) for call in calls]
        except (ServerBroke, ExternalError) as error:
            raise EnvironmentBroke(f"call: {error}") from error

    def leave(self) -> None:
        """End the session."""
        self.pool.left(self.client)

    async def _called(self, call: ToolCall) -> ToolResult:
        """Make a call; what it comes to is for the agent, unless the server is broken."""
        limit = self.pool.spec.call_timeout_s
        try:
            async with asyncio.timeout(limit):
                said = await self.client.request("tools/call", {"name": call.name, "arguments": call.arguments})
        except RequestRefused as refused:
            return self._result(str(refused), failed=True)
        except TimeoutError:
            if await self.client.give_up():
                return self._result(f"no answer within {limit:g} s", failed=True)
            late, self.client = self.client, (await self.pool.begin()).client
            self.pool.left(late)
            told = f"no answer within {limit:g} s; its session was ended, and a new one began"
            return self._result(told, failed=True)
        return self._result(text_of(said), failed=bool(said.get("isError")))

    def _result(self, text: str, *, failed: bool) -> ToolResult:
        return ToolResult(text[: self.pool.result_characters], len(text), failed)


def _failed(task: "asyncio.Task[tuple[PinnedTool, ...]]") -> bool:
    return task.cancelled() or task.exception() is not None


def _usable(listed: Sequence[dict[str, object]]) -> dict[str, PinnedTool]:
    """Return the tools that prompts can have, by name, in their order; others are left out, as those of packages are.

    Raises ServerBroke for too many.
    """
    found: dict[str, PinnedTool] = {}
    for one in listed:
        with suppress(ValidationError):
            tool = PinnedTool.model_validate(OfferedTool.model_validate(tool_of(one)).model_dump())
            found.setdefault(tool.name, tool)
    if len(found) > MOST_TOOLS:
        raise ServerBroke(f"oversized: it lists {len(found)} tools, at most {MOST_TOOLS} are taken")
    return found


def _changed(pinned: Sequence[PinnedTool], listed: dict[str, PinnedTool]) -> str:
    """Say what became of the tools of a run; empty where they are as they were."""
    for tool in pinned:
        now = listed.get(tool.name)
        if now is None:
            return f"{tool.name} is gone"
        if now.description != tool.description:
            return f"{tool.name} has another description"
        if now.parameters != tool.parameters:
            return f"{tool.name} has other arguments"
    return ""
