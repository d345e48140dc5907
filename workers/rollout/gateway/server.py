"""The gateway of a rollout worker: HTTP for agent programs, beside the episodes that their calls are turns of.

Invariants. The key of a call says which session it belongs to; the gateway keeps digests of keys alone. What the store
says of sessions (taken, awaiting a reward, reported, overdue) is read from it, so a lost hint loses nothing; a session
is open to its key before the next look. A client that hangs up takes nothing back: its call is answered and recorded,
and may be asked again.
"""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import structlog
from aiohttp import web

from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.language.dialects import chat, messages
from flexmarl.language.dialects.calls import CallRefused, ModelCall
from flexmarl.language.dialects.dialect import dialect_of
from flexmarl.store.control import program_sessions
from flexmarl.store.control.program_sessions import SessionOffer
from workers.rollout.gateway.calls import ProgramCall, over
from workers.rollout.gateway.sessions import Count, ProgramSession
from workers.rollout.isolation import EnvironmentBroke

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 32 * 2**20
LOOK_S = 0.2
"""Pause between looks at what programs took and reported."""
SEEN_S = 3.0
"""A session is said to be there this often."""
END_TRIES = 5
END_AGAIN_S = 1.0
CLOSE_S = 3.0
"""Who closes the gateway waits as long for the ends of sessions to be written."""
KEY = re.compile(r"fms_[A-Za-z0-9_-]{43}")
RETRY_HEADER = "X-Stainless-Retry-Count"
"""By which the clients of OpenAI and Anthropic say how often they have asked before."""

Store = Callable[[Callable[[psycopg.Connection], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class GatewayPlace:
    """Where programs reach the gateway."""

    bind: str = "127.0.0.1:0"
    """Address and port; port 0 takes a free one."""
    host: str = "127.0.0.1"
    """Host under which programs reach it."""
    url: str = ""
    """Base URL in front of it, such as that of a proxy; empty: its own."""


class Gateway:
    """One per rollout worker process; it listens from the first session on."""

    def __init__(self, place: GatewayPlace, store: Store) -> None:
        self._place = place
        self._store = store
        self._opening = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._url = ""
        self._sessions: dict[UUID, ProgramSession] = {}
        self._by_key: dict[str, ProgramSession] = {}
        self._keys: dict[UUID, str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._ends: set[asyncio.Task[None]] = set()
        """Of sessions that are over, while the store is told."""

    async def open(
        self,
        run_id: int,
        spec: ProgramEnvironment,
        held_out: bool,
        task: int,
        episode: tuple[int, int, int],
        count: Count,
        key: str = "",
    ) -> ProgramSession:
        """Open a session that a program may take. Raises EnvironmentBroke where the gateway cannot listen.

        `key`: of a program that is started here, which has the session from the beginning.
        """
        async with self._opening:
            if self._runner is None:
                await self._listen()
        session = ProgramSession(uuid4(), spec, task, self._left, count)
        self._sessions[session.id] = session
        digest = sha256(key.encode()).hexdigest() if key else ""
        offer = SessionOffer(session.id, self._url, held_out, task, episode, digest or None)
        if digest:
            self._give(session, digest)
        try:
            await self._store(lambda conn: program_sessions.open_session(conn, run_id, offer))
        except BaseException:
            self._forget(session)
            raise
        return session

    async def admit(self, door: socket.socket) -> web.SockSite:
        """Answer calls at a further socket, which listens already. Stop what is returned in the end."""
        async with self._opening:
            if self._runner is None:
                await self._listen()
        assert self._runner is not None
        site = web.SockSite(self._runner, door)
        await site.start()
        return site

    async def earned(self, run_id: int, session: ProgramSession, report: dict[str, Any]) -> bool:
        """Write down what a program that was started here earned; False where its session is over."""
        return bool(await self._store(lambda conn: program_sessions.report(conn, run_id, session.id, report)))

    async def wrote(
        self, session: ProgramSession, output: str, changes: dict[str, Any] | None = None, image: str = ""
    ) -> None:
        """Keep the end of what a program that was started here wrote, what it made of its workspace, and its image."""
        await self._store(
            partial(program_sessions.wrote, session=session.id, output=output, changes=changes, image=image)
        )

    async def written(self, timeout_s: float | None = None) -> None:
        """Return once the store knows of every session that is over how it ended, or after a time."""
        if self._ends:
            await asyncio.wait(self._ends, timeout=timeout_s)

    async def close(self) -> None:
        """Stop listening. What the store does not take in now, it will miss."""
        await self.written(CLOSE_S)
        for task in (self._watching, *self._ends):
            if task is not None:
                task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _listen(self) -> None:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_in_dialect])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._on_call),
                web.post("/v1/responses", self._on_call),
                web.post("/v1/messages", self._on_call),
                web.post("/v1/messages/count_tokens", self._on_count),
                web.get("/v1/models", self._on_models),
                web.get("/v1/models/{model}", self._on_model),
            ]
        )
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        host, _, port = self._place.bind.rpartition(":")
        try:
            await web.TCPSite(runner, host, int(port)).start()
        except OSError as error:
            await runner.cleanup()
            hint = "set FLEXMARL_GATEWAY_BIND to a free address of this host"
            raise EnvironmentBroke(f"gateway: cannot listen on {self._place.bind}: {error.strerror}; {hint}") from error
        self._runner = runner
        self._url = self._place.url or f"http://{self._place.host}:{runner.addresses[0][1]}"
        self._watching = asyncio.create_task(self._watch())

    # What the store says ------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Tell sessions what becomes of them, and the store that they are there."""
        said = 0.0
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._sessions:
                continue
            try:
                await self._look()
                if time.monotonic() - said > SEEN_S:
                    said = time.monotonic()
                    await self._meter(*self._sessions.values())
            except psycopg.OperationalError as error:
                log.warning("sessions not read", error=str(error))

    async def _look(self) -> None:
        news = await self._store(partial(program_sessions.news, sessions=tuple(self._sessions)))
        for one in news:
            if (session := self._sessions.get(one.id)) is None:
                continue
            if one.id not in self._keys:
                self._give(session, one.key_digest)
                session.taken()
            if one.state == "finished":
                session.report(one.report)
            elif one.state == "awaiting_reward":
                session.reward_later()
                if one.overdue:  # the store says whether a report was sooner, at the next look
                    reason = f"environment: {session.overdue_reason}"
                    await self._store(partial(program_sessions.end_overdue, session=session.id, reason=reason))
            elif one.state == "ended" and session.awaits_reward:
                session.fail(session.overdue_reason)

    def _give(self, session: ProgramSession, key_digest: str) -> None:
        self._keys[session.id] = key_digest
        self._by_key[key_digest] = session

    async def _meter(self, *sessions: ProgramSession) -> None:
        meters = [session.meter() for session in sessions]
        await self._store(partial(program_sessions.seen, meters=meters))

    def _left(self, session: ProgramSession) -> None:
        """Write down how a session ended; until then it refuses calls itself."""
        task = asyncio.create_task(self._write_end(session))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _write_end(self, session: ProgramSession) -> None:
        if session.reported:
            self._forget(session)  # the store says already that it is over
        end = partial(program_sessions.end, session=session.id, reason=session.over)
        for _ in range(END_TRIES):
            try:
                await self._meter(session)
                if not session.reported:
                    await self._store(end)
                break
            except psycopg.OperationalError as error:
                log.warning("session end not written", session=str(session.id), error=str(error))
                await asyncio.sleep(END_AGAIN_S)
        self._forget(session)

    def _forget(self, session: ProgramSession) -> None:
        self._sessions.pop(session.id, None)
        self._by_key.pop(self._keys.pop(session.id, ""), None)

    # What programs say --------------------------------------------------------------------------------------------

    async def _session(self, request: web.Request) -> ProgramSession:
        """Return the session of a request's key. Raises CallRefused."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ") or request.headers.get("X-Api-Key", "")
        digest = sha256(given.encode()).hexdigest()
        if KEY.fullmatch(given):
            if digest not in self._by_key:
                await self._look()
            if (session := self._by_key.get(digest)) is not None:
                return session
            if reason := await self._store(partial(program_sessions.reason_of, key_digest=digest)):
                raise over(reason.removeprefix("ended: "))
        raise CallRefused(401, "invalid_api_key", "The key belongs to no session; POST /api/v1/runs/RUN/sessions.")

    async def _on_models(self, request: web.Request) -> web.Response:
        session = await self._session(request)
        return _json(chat.models(session.spec.seats, session.opened_at))

    async def _on_model(self, request: web.Request) -> web.Response:
        session, seat = await self._session(request), request.match_info["model"]
        if seat not in session.spec.seats:
            raise CallRefused(404, "model_not_found", f"model: there is no {seat!r}.", "model")
        return _json(chat.model(seat, session.opened_at))

    async def _on_count(self, request: web.Request) -> web.Response:
        session = await self._session(request)
        call = _read(await request.read(), messages.read_count)
        return _json(messages.counted(await asyncio.to_thread(session.count, call)))

    async def _on_call(self, request: web.Request) -> web.StreamResponse:
        session, dialect = await self._session(request), dialect_of(request.path)
        body = await request.read()
        digest = sha256(request.path.encode() + b"\n" + body).hexdigest()
        tries = request.headers.get(RETRY_HEADER, "")
        again = tries != "0" if tries else None
        asked = session.call(ProgramCall.of(_read(body, dialect.read), digest, again))
        # Shielded: who repeats a call waits for the same answer, and so does the record.
        answer = await asyncio.shield(asked.answer)
        if not asked.stream:
            return _json(dialect.whole(asked, answer))
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await stream.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # who hung up reads no more
            for event in dialect.events(asked, answer):
                await stream.write(event)
        return stream


def _read(body: bytes, read: Callable[[Any], ModelCall]) -> ModelCall:
    try:
        return read(msgspec.json.decode(body))
    except msgspec.DecodeError as error:
        raise CallRefused(400, "invalid_json", f"The body is not JSON: {error}") from error
    except RecursionError as error:
        raise CallRefused(400, "invalid_json", "The body is nested too deeply.") from error


@web.middleware
async def _in_dialect(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answer whatever a handler raises in the shape that clients understand."""
    try:
        answer: web.StreamResponse = await handler(request)
    except (CallRefused, web.HTTPException, psycopg.Error) as error:
        refused = _refusal(error, request.path)
        return _json(dialect_of(request.path).refusal(refused), refused.status)
    return answer


def _refusal(error: CallRefused | web.HTTPException | psycopg.Error, path: str) -> CallRefused:
    match error:
        case CallRefused():
            return error
        case web.HTTPRequestEntityTooLarge():
            return CallRefused(413, "body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        case web.HTTPException():
            known = "/v1/chat/completions, /v1/responses, /v1/messages, /v1/messages/count_tokens and /v1/models"
            return CallRefused(error.status, "not_found", f"There is nothing at {path}; available: {known}.")
    log.warning("session not read", error=str(error))
    return CallRefused(503, "store_unavailable", "The session cannot be read now; ask again.")


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
