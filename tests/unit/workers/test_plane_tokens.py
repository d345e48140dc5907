"""A child answers its host's secret on all paths, a rollout worker's token on those of generation, and nobody else."""

import json
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from flexmarl.contracts.plane_tokens import LEEWAY_S, TTL_S, PlaneRefused, TokenPlane, check, sign
from workers.child import ChildConfig
from workers.child_server import _bearer

RUN, SECRET = 7, "secret-of-this-life"
NOW = 1_000_000.0


def token(secret=SECRET, run=RUN, plane=TokenPlane.ROLLOUT, ago=0.0):
    """Tell how to sign a token; signed when the test runs, as it lives for minutes and a suite for longer."""
    return lambda: sign(secret, run, plane, time.time() - ago)


def ever_valid() -> str:
    """Return a token that has expired and says of itself that it has not."""
    return token(ago=9999)().replace(".rollout.", ".rollout.9")


TABLE = [
    ("the secret", lambda: SECRET, "/load", 200, None),
    ("a rollout token", token(), "/v1/completions", 200, None),
    ("a rollout token that commands", token(), "/load", 403, "token_plane"),
    ("a token that says host", token(plane=TokenPlane.HOST), "/load", 403, "token_plane"),
    ("a token of another run", token(run=8), "/v1/completions", 401, "token_foreign"),
    ("a token of another life", token("former secret"), "/v1/completions", 401, "unauthorized"),
    ("an old token", token(ago=TTL_S + LEEWAY_S + 5), "/v1/completions", 401, "token_expired"),
    ("a changed expiry", ever_valid, "/v1/completions", 401, "unauthorized"),
    ("no token", lambda: "", "/health", 401, "unauthorized"),
    ("letters", lambda: "v1.x.rollout.y.z", "/health", 401, "unauthorized"),
    ("other letters", lambda: "ü" * 9, "/health", 401, "unauthorized"),
]


@pytest.mark.parametrize(("who", "bearer", "path", "status", "code"), TABLE, ids=[row[0] for row in TABLE])
async def test_each_caller_gets_a_named_answer(who, bearer, path, status, code) -> None:
    reached = []

    async def handler(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response()

    config = ChildConfig("engine", RUN, 1, 1, "life", "cpu", 1, "127.0.0.1", SECRET, "/tmp", {})
    app = web.Application(middlewares=[_bearer(config)])
    for known in ("/load", "/v1/completions", "/health"):
        app.router.add_post(known, handler)
    async with TestClient(TestServer(app)) as client:
        answer = await client.post(path, headers={"Authorization": f"Bearer {bearer()}"})
        body = await answer.read()
    assert (answer.status, bool(reached)) == (status, status == 200)
    assert (json.loads(body)["code"] if body else None) == code


def test_a_token_is_good_until_its_expiry_and_the_difference_of_clocks() -> None:
    text = sign(SECRET, RUN, TokenPlane.ROLLOUT, NOW)
    assert check(SECRET, text, RUN, NOW + TTL_S + LEEWAY_S).plane is TokenPlane.ROLLOUT
    assert check(SECRET, text, RUN, NOW - 3600).run_id == RUN, "the child's clock may be behind"
    with pytest.raises(PlaneRefused):
        check(SECRET, text, RUN, NOW + TTL_S + LEEWAY_S + 1)
