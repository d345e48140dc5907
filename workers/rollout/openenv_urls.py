"""Environments of OpenEnv behind URLs, of one run in one rollout worker: a session over a websocket for each episode.

Invariants. Only hosts that the operator allows are asked; no redirect is followed, no proxy of the environment is used,
and nothing is read without a bound. A session belongs to one episode and is ended with it, in whatever way that ends. A
message is sent once: a move may have been made though its answer was lost.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import aiohttp
import msgspec
import structlog

from flexmarl.contracts.specification.openenv import OpenEnvUrl
from workers.external_access import MAX_REPLY_BYTES, ExternalAccess, ExternalError, ExternalFailure, quoted
from workers.packages.inside.finding import task_number
from workers.packages.inside.openenv_actions import ActionForm, form_of
from workers.packages.inside.openenv_episode import CAPACITY, Asking, ServedGame, ServerError, Worth
from workers.packages.inside.shapes import (
    MOST_LINE,
    NoReward,
    NotFinite,
    ProgramFault,
    SeatReply,
    TooLarge,
    asks_of,
    line,
    score_of,
)
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.isolation.lines import EpisodeProgress, outcome_of
from workers.rollout.isolation.processes import EnvironmentBroke
from workers.rollout.mcp_client import connections

log = structlog.get_logger(__name__)

SCHEMA = "/schema"
AGAIN_S = (0.5, 1.0, 2.0, 5.0)
"""Pauses before a server without a free session is asked again; the last one repeats."""
NAMED = (ProgramFault, TooLarge, NotFinite, NoReward, ExternalError)


async def _refused(*_: object) -> None:
    raise ExternalError(ExternalFailure.REFUSED, "it answered with a redirect, which is not followed")


class OpenEnvSession:
    """One websocket. Deadlines are the caller's."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the object that answers. Raises ExternalError and ProgramFault."""
        try:
            await self._socket.send_str(json.dumps(message))
            said = await self._socket.receive()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ExternalError(ExternalFailure.UNREACHABLE, type(error).__name__) from error
        if said.type is aiohttp.WSMsgType.ERROR:
            if getattr(said.data, "code", None) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                raise TooLarge(f"oversized: its answer has more than {MOST_LINE} bytes")
            raise ProgramFault("garbage: what it sent is no message")
        if said.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            raise ExternalError(ExternalFailure.UNREACHABLE, "it closed the session")
        try:
            answer = json.loads(said.data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ProgramFault("garbage: its answer is no JSON object")
        return answer

    async def close(self) -> None:
        """End the session."""
        with suppress(aiohttp.ClientError, ConnectionError):
            await self._socket.send_str(json.dumps({"type": "close"}))
        await self._socket.close()


@dataclass(slots=True)
class OpenEnvPool:
    """The sessions with one server. Used from one event loop."""

    spec: OpenEnvUrl
    access: ExternalAccess
    _http: aiohttp.ClientSession | None = None
    _form: ActionForm | None = None
    """How its actions are said, once it was asked."""
    _closing: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def begin(self, task_seed: int, held_out: bool, seed: int) -> "OpenEnvEpisode":
        """Begin an episode; waits for a free session. Raises EnvironmentBroke."""
        limit = self.spec.setup_timeout_s
        number = task_number(task_seed, held_out)
        given = {**self.spec.options, "seed": number, "episode_id": f"{number}-{seed}"}
        waited, pauses = False, chain(AGAIN_S, repeat(AGAIN_S[-1]))
        try:
            async with asyncio.timeout(limit):
                while True:
                    try:
                        return await self._begun(given)
                    except ServerError as error:
                        if error.code != CAPACITY:
                            raise
                    waited = True
                    await asyncio.sleep(next(pauses))
        except TimeoutError as error:
            known = f"it had no free session within {limit:g} s" if waited else f"no answer within {limit:g} s"
            raise EnvironmentBroke(f"boot: {known}") from error
        except NAMED as error:
            raise EnvironmentBroke(f"boot: {error}") from error

    async def _begun(self, given: Mapping[str, Any]) -> "OpenEnvEpisode":
        proof = self.access.headers(self.spec.url, self.spec.secret)
        form = await self._asked_form(proof)
        session = await self._opened(proof)
        game = ServedGame(form, Worth(self.spec.episode_reward == "last", self.spec.unfinished_reward))
        try:
            await driven(game.begin(given), session)
            return OpenEnvEpisode(self, session, game)
        except BaseException:  # cancelled, too: the server holds a session that nobody would end
            self.left(session)
            raise

    async def _asked_form(self, proof: Mapping[str, str]) -> ActionForm:
        """Return how its actions are said. Raises ExternalError and ProgramFault."""
        if self._form is None:
            url = "http" + self.spec.url.removeprefix("ws").removesuffix("/ws") + SCHEMA
            try:
                async with self._connections().get(url, headers=dict(proof), allow_redirects=False) as answer:
                    body = await answer.content.read(MAX_REPLY_BYTES)
                    while len(body) < MAX_REPLY_BYTES and (more := await answer.content.read(MAX_REPLY_BYTES)):
                        body += more
            except aiohttp.ClientError as error:
                raise ExternalError(ExternalFailure.UNREACHABLE, type(error).__name__) from error
            if answer.status != 200:
                said = f"status {answer.status} at {SCHEMA}: {quoted(body, proof)}"
                raise ExternalError(ExternalFailure.REFUSED, said)
            self._form = _form(body)
        return self._form

    async def _opened(self, proof: Mapping[str, str]) -> OpenEnvSession:
        """Open a websocket. Raises ExternalError."""
        try:
            socket = await self._connections().ws_connect(
                self.spec.url, headers=dict(proof), max_msg_size=MOST_LINE, compress=0
            )
        except aiohttp.WSServerHandshakeError as error:
            raise ExternalError(ExternalFailure.REFUSED, f"status {error.status} at its websocket") from error
        except aiohttp.ClientError as error:
            raise ExternalError(ExternalFailure.UNREACHABLE, type(error).__name__) from error
        return OpenEnvSession(socket)

    def _connections(self) -> aiohttp.ClientSession:
        if self._http is None:
            redirects = aiohttp.TraceConfig()
            redirects.on_request_redirect.append(_refused)
            self._http = connections(redirects)
        return self._http

    def left(self, session: OpenEnvSession) -> None:
        """End a session that nobody uses any more, without waiting for it."""
        closing = asyncio.get_running_loop().create_task(self._closed(session))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _closed(self, session: OpenEnvSession) -> None:
        try:
            async with asyncio.timeout(self.spec.close_timeout_s):
                await session.close()
        except TimeoutError:
            log.warning("session of an environment not closed", server=self.spec.url)

    async def close(self) -> None:
        """End every session that is still being ended, and drop the connections."""
        if self._closing:
            await asyncio.wait(self._closing)
        if self._http is not None:
            await self._http.close()
            self._http = None


def _form(body: bytes) -> ActionForm:
    """Read how actions are said. Raises ProgramFault."""
    try:
        schema = json.loads(body)["action"]
        return form_of(schema, None)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise ProgramFault(f"garbage: its {SCHEMA} has no schema of actions") from None


async def driven(work: Asking, session: OpenEnvSession) -> None:
    """Ask all that an episode asks."""
    try:
        message = next(work)
        while True:
            message = work.send(await session.exchange(message))
    except StopIteration:
        return


@dataclass(slots=True)
class OpenEnvEpisode:
    """An episode that a server plays. Leave it in every case."""

    pool: OpenEnvPool
    session: OpenEnvSession
    game: ServedGame
    task: dict[str, object] = field(init=False)
    _progress: EpisodeProgress = field(init=False)
    _turns: int = 0

    def __post_init__(self) -> None:
        """Raises TooLarge, NotFinite and NoReward."""
        self.task = {"title": self.pool.spec.url, "facts": {"first words": self.game.first[:500]}}
        self._progress = self._told()

    def asks(self) -> list[Ask]:
        """Return who must act now; empty when the episode is over."""
        return self._progress.asks

    async def score(self, replies: list[Reply]) -> None:
        """Do nothing: the server scores what it plays."""

    async def act(self, replies: list[Reply]) -> None:
        """Move on. Raises EnvironmentBroke for a server that failed or said nothing in time."""
        limit = self.pool.spec.step_timeout_s
        said = replies[0]
        calls = said.message.tool_calls if said.message is not None else ()
        heard = [{"name": one.name, "arguments": one.arguments, "id": one.id} for one in calls]
        self._turns += 1
        try:
            async with asyncio.timeout(limit):
                await driven(self.game.act(SeatReply(said.role, said.text, tuple(heard))), self.session)
            self._progress = self._told()
        except TimeoutError as error:
            raise EnvironmentBroke(f"step: no answer within {limit:g} s") from error
        except (NoReward, NotFinite) as error:
            raise EnvironmentBroke(f"score: {error}") from error
        except NAMED as error:
            raise EnvironmentBroke(f"step: {error}") from error

    def _told(self) -> EpisodeProgress:
        """Return the state, within the bounds of environments that play in processes."""
        asks = self.game.asks()
        cut = bool(asks) and self._turns >= self.pool.spec.max_turns
        if asks and not cut:
            written = [{**ask, "max_tokens": self.pool.spec.reply_tokens} for ask in asks_of(asks)]
            said: dict[str, Any] = {"type": "progress", "asks": written}
        else:
            score = score_of(self.game.result())
            score["facts"]["cut_off"] = float(cut)
            said = {"type": "progress", "asks": [], "score": score}
        return msgspec.json.decode(line(said), type=EpisodeProgress)

    def outcome(self) -> Outcome:
        """Return the account; only when `asks` is empty."""
        assert self._progress.score is not None
        return outcome_of(self._progress.score)

    def leave(self, reason: str = "") -> None:
        """End the session."""
        self.pool.left(self.session)
