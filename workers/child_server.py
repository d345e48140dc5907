"""The frame every child process shares: a configuration line in, a ready line out, HTTP with a bearer secret between.

Invariants: the child ends when its parent does (end of file on standard input) and on SIGTERM; nothing but the ready
line ever reaches standard output, whatever a library prints; a request without the secret, or a token that it
signed for this run and path, touches nothing.
"""

import asyncio
import errno
import faulthandler
import hmac
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Sequence

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

try:
    from uvloop import new_event_loop
except ImportError:  # not on every platform, and only faster
    from asyncio import new_event_loop  # type: ignore[assignment]

from flexmarl.contracts.plane_tokens import PlaneRefusalCode, PlaneRefused, TokenPlane, check
from flexmarl.store.data.model_roots import ModelRoots
from workers.child import ChildConfig, ChildFailed, ChildHealth, IntervalLog, IntervalsRequest, ReadyLine
from workers.models.opening import allow

MAX_BODY_BYTES = 256 * 2**20
OPEN_TO = {TokenPlane.ROLLOUT: frozenset({"/health", "/stats", "/abort", "/v1/completions"})}
"""Paths that a token of a plane opens; the secret opens all."""
NICENESS = 5
"""Of engines and trainers that compute on a host's cores: who asks the control plane something is answered first."""
SHUTDOWN_S = 0.3
"""How long open requests may take to end once the child was told to stop."""


def read_config() -> ChildConfig:
    """Read the configuration line from standard input, leaving the rest of the stream untouched.

    From then on this process reads models below the configuration's roots, and of the home only those made there.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    config = msgspec.json.decode(bytes(line), type=ChildConfig)
    allow(ModelRoots(config.model_roots, (config.home,)), config.home, config.python)
    if config.device == "cpu":
        os.nice(NICENESS)
    return config


def run_loop(main: Coroutine[object, object, None]) -> None:
    """Run the child's main coroutine, on the fast event loop where there is one."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


def json_response(body: object, status: int = 200) -> web.Response:
    """Answer with a msgspec value."""
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")


def say(answer: int, line: ReadyLine | ChildFailed) -> None:
    """Write the one line that the parent waits for."""
    os.write(answer, msgspec.json.encode(line) + b"\n")


async def serve(
    config: ChildConfig,
    routes: Sequence[web.RouteDef],
    intervals: IntervalLog,
    answer: int | None = None,
    rendezvous: int = 0,
) -> None:
    """Serve routes until the parent is gone or asks to stop. The ready line goes out once the port is bound.

    `rendezvous` is the port where ranks of gangs meet that this child leads.
    """
    faulthandler.enable()  # a host that finds this process hanging asks for its stacks with SIGABRT
    answer = take_standard_output() if answer is None else answer
    stop = asyncio.Event()
    _watch(stop)
    app = web.Application(middlewares=[_bearer(config)], client_max_size=MAX_BODY_BYTES)
    app.add_routes([*routes, *_common_routes(config, intervals)])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        await _listen(runner, config.host, answer)
        port = runner.addresses[0][1]
        say(answer, ReadyLine(port, config.incarnation, rendezvous))
        await stop.wait()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str, answer: int) -> None:
    """Bind a free port. An address that is not this machine's is said in the place of the ready line."""
    try:
        await web.TCPSite(runner, host, 0).start()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:  # that no port is free passes: another life may find one
            hint = "set FLEXMARL_CHILD_HOST to an address of this host"
            say(answer, ChildFailed("address", f"cannot listen on {host}: {os.strerror(error.errno or 0)}", hint))
        raise


def _common_routes(config: ChildConfig, intervals: IntervalLog) -> list[web.RouteDef]:
    async def health(_: web.Request) -> web.Response:
        done = intervals.progress
        return json_response(ChildHealth(config.use, config.incarnation, config.lease_id, done.working, done.beats))

    async def drain(request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read() or b"{}", type=IntervalsRequest)
        closed = intervals.drain(asked.acknowledged, time.time())
        return json_response(intervals.flush() if asked.last else closed)

    return [web.get("/health", health), web.post("/intervals", drain)]


def _bearer(config: ChildConfig) -> Middleware:
    expected = f"Bearer {config.secret}".encode()

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), expected):
            try:
                _admit(config, given.removeprefix("Bearer "), request.path)
            except PlaneRefused as refused:
                status = 403 if refused.code is PlaneRefusalCode.TOKEN_PLANE else 401
                return json_response({"code": refused.code, "detail": str(refused)}, status)
        return await handler(request)

    return answer


def _admit(config: ChildConfig, token: str, path: str) -> None:
    """Raise PlaneRefused unless a token opens a path of this child now."""
    plane = check(config.secret, token, config.run_id, time.time()).plane
    if path not in OPEN_TO.get(plane, frozenset()):
        raise PlaneRefused(PlaneRefusalCode.TOKEN_PLANE, f"a token of the {plane} plane does not open {path}")


def take_standard_output() -> int:
    """Keep standard output for the ready line; what libraries print goes to standard error. Once per process."""
    sys.stdout.flush()
    answer = os.dup(1)
    os.dup2(2, 1)
    return answer


def _watch(stop: asyncio.Event) -> None:
    """Set `stop` on SIGTERM, SIGINT and end of standard input."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait_for_end, name="parent-watch", daemon=True).start()
