"""What a node answers over HTTP: the driver, the web process, and other nodes.

Invariants: whoever asks shows this node's key; without it `GET /health` alone says that it is there. With the
installation's secrets that is the cluster key. A node with a token makes a key of its own for the other nodes of its
pool, which learn it from the control plane; they read contents of the state plane with it and nothing else.
"""

import contextlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import ValidationError

from flexmarl.contracts.play import PlayRefusal, PlayRequest
from flexmarl.contracts.trials import ScoreTrial
from flexmarl.store.node_operations import LEAST_KEY
from workers.nodes.archives import Archives
from workers.nodes.model_archives import ModelArchives
from workers.nodes.playground import Playground
from workers.nodes.receiving import UploadRoutes
from workers.scoring.trials import ScoreTrials
from workers.settings import Settings
from workers.transfer.peer import StateRoutes


class Push(msgspec.Struct):
    """Body of `POST /v1/commands`: look at this command. Unknown fields are ignored."""

    run_id: int
    no: int
    lease_id: int = 0


class NodeEndpoint:
    """The routes of one node."""

    def __init__(
        self, settings: Settings, playground: Playground, uploads: UploadRoutes,
        pushed: Callable[[Push], None], about: Callable[[], dict[str, object]],
    ) -> None:  # fmt: skip
        """`pushed` is told of commands to look at; `about` says who the node is and what it hosts."""
        self._settings = settings
        self.key = settings.cluster_key or secrets.token_urlsafe(LEAST_KEY)
        """What callers show."""
        self._playground = playground
        self._uploads = uploads
        self._trials = ScoreTrials()
        self._pushed = pushed
        self._about = about

    @contextlib.asynccontextmanager
    async def serving(self, session: aiohttp.ClientSession) -> AsyncIterator[int]:
        """Serve; yields the port."""
        host, _, port = self._settings.node_bind.rpartition(":")
        app = web.Application()
        app.add_routes([web.get("/health", self._on_health), *self._for_peers()])
        if self._settings.door is None:
            app.add_routes(self._for_the_installation(session))
            self._uploads.mount(app, self._guarded)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, int(port)).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    def _for_peers(self) -> Sequence[web.RouteDef]:
        state = StateRoutes(self._settings.home)
        return [
            web.get("/v1/state/{digest}", partial(self._guarded, state.manifest)),
            web.get("/v1/state/{digest}/delta", partial(self._guarded, state.delta)),
            web.get("/v1/state/chunks/{name}", partial(self._guarded, state.chunk)),
        ]

    def _for_the_installation(self, session: aiohttp.ClientSession) -> Sequence[web.RouteDef]:
        archive = Archives(self._settings.home, self._settings.model_roots).answer
        models = ModelArchives(self._settings.home).answer
        return [
            web.post("/v1/commands", partial(self._guarded, self._on_push)),
            web.post("/v1/playground", partial(self._guarded, partial(self._on_play, session))),
            web.post("/v1/scores", partial(self._guarded, self._on_trial)),
            web.get("/v1/checkpoints/{run}/{step}/archive", partial(self._guarded, archive)),
            web.get("/v1/models/{digest}/archive", partial(self._guarded, models)),
        ]

    async def _on_push(self, request: web.Request) -> web.Response:
        try:
            self._pushed(msgspec.json.decode(await request.read(), type=Push))
        except msgspec.DecodeError as error:
            return web.json_response({"code": "bad_request", "detail": str(error)}, status=422)
        return web.Response(status=202)

    async def _on_play(self, session: aiohttp.ClientSession, request: web.Request) -> web.Response:
        """Answer 200 with an engine, 202 while it starts, 409 with the reason why there is none."""
        try:
            asked = PlayRequest.model_validate_json(await request.read())
        except ValidationError as error:
            return web.json_response({"code": "bad_request", "detail": str(error)}, status=422)
        answer = await self._playground.ask(session, asked)
        status = 409 if isinstance(answer, PlayRefusal) else 200 if answer.endpoint else 202
        return web.Response(body=answer.model_dump_json(), status=status, content_type="application/json")

    async def _on_trial(self, request: web.Request) -> web.Response:
        """Answer what scores that somebody tries say of a reply."""
        try:
            answer = await self._trials.answer(ScoreTrial.model_validate_json(await request.read()))
        except ValidationError as error:
            return web.json_response({"code": "bad_request", "detail": str(error)}, status=422)
        return web.Response(body=answer.model_dump_json(), content_type="application/json")

    async def _guarded(self, answer: Handler, request: web.Request) -> web.StreamResponse:
        """Answer who shows this node's key."""
        if self._knows(request):
            return await answer(request)
        refusal = {"code": "unauthorized", "detail": "the cluster key is missing or wrong"}
        return web.json_response(refusal, status=401)

    def _knows(self, request: web.Request) -> bool:
        return hmac.compare_digest(request.headers.get("Authorization", "").encode(), f"Bearer {self.key}".encode())

    async def _on_health(self, request: web.Request) -> web.Response:
        """Say that the node answers; to who shows its key also who it is and what it hosts."""
        return web.json_response({"status": "ok", **(self._about() if self._knows(request) else {})})
