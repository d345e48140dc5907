"""The web process as strangers meet it: whose forwarded headers it believes, and many wrong passwords at once."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.web import environment_of, manage, served

pytestmark = pytest.mark.services
PER_ADDRESS = 30
"""Wrong passwords of one address that are looked at, as docs/security.md says."""
WINDOW_S = 300
"""Length of the windows in which they are counted, which begin at multiples of it."""
PARALLEL = 50
HEALTH_S = 1.0


@pytest.fixture(scope="module")
def environment(services: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    name = "front_door"
    home = tmp_path_factory.mktemp("front-door")
    made = environment_of(services.create_database(name), services.redis_url, home)
    manage(made, "prepare")
    yield made
    services.drop_database(name)


@pytest.fixture(scope="module")
def token(environment: dict[str, str]) -> str:
    """Of a token that is good in another network alone."""
    made = manage(environment, "create_token", "--name", "near", "--networks", "10.0.0.0/8", "--scopes", "runs:read")
    return made.split()[-1]


@pytest.fixture(scope="module")
def plain(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a web process that believes no proxy."""
    with served(environment, tmp_path_factory.mktemp("plain") / "web.log") as url:
        yield url


def status(url: str, token: str, **headers: str) -> int:
    return asked(f"{url}/api/v1/me", Authorization=f"Bearer {token}", **headers)


def asked(url: str, **headers: str) -> int:
    """Return the status of an address, however busy the machine is: the first page of a process takes seconds."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.get(url, headers=given, timeout=90).status_code


def test_forwarded_headers_of_loopback_are_not_believed(plain: str, token: str) -> None:
    assert status(plain, token) == 401
    assert status(plain, token, X_Forwarded_For="10.0.0.1") == 401
    assert asked(f"{plain}/sign-in", X_Forwarded_Host="evil.example") == 200


def test_a_trusted_proxy_says_who_calls(environment: dict[str, str], token: str, short_tmp: Path) -> None:
    trusting = {**environment, "FLEXMARL_TRUSTED_PROXIES": "127.0.0.1,192.0.2.0/24"}
    with served(trusting, short_tmp / "web.log") as url:
        assert status(url, token) == 401, "the proxy itself is not in the token's networks"
        assert status(url, token, X_Forwarded_For="10.0.0.1") == 200
        assert status(url, token, X_Forwarded_For="10.0.0.1, 192.0.2.7") == 200, "through two trusted proxies"
        assert status(url, token, X_Forwarded_For="10.0.0.1, 203.0.113.9") == 401, "claimed by a stranger"
        assert asked(f"{url}/sign-in", X_Forwarded_Host="evil.example") == 400


def test_wrong_passwords_do_not_starve_the_health_check(plain: str) -> None:
    until_within_a_window(60.0)
    with ThreadPoolExecutor(PARALLEL) as pool:
        line = threading.Barrier(PARALLEL + 1)
        tries = [pool.submit(wrong_password, plain, f"admin{n % 10}", line) for n in range(PARALLEL)]
        line.wait(60)
        waits = measured(lambda: httpx2.get(f"{plain}/healthz", timeout=30).status_code == 200, tries)
        codes = [one.result() for one in tries]
    assert len(waits) >= 3
    assert max(waits) < HEALTH_S, waits
    assert set(codes) <= {200, 429, 503}, codes  # 503: a busy machine asks to come back in its line
    assert PARALLEL - codes.count(200) >= PARALLEL - PER_ADDRESS, "the others are refused before a hash is made"


def until_within_a_window(seconds: float) -> None:
    """Wait for a moment that has so much of its window left: a new one begins to count anew."""
    left = WINDOW_S - time.time() % WINDOW_S
    if left < seconds:
        time.sleep(left + 0.1)


def wrong_password(url: str, name: str, line: threading.Barrier) -> int:
    with httpx2.Client(base_url=url, timeout=120) as client:
        page = client.get("/sign-in")
        token = page.text.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        line.wait(60)
        body = {"username": name, "password": "wrong-password", "csrfmiddlewaretoken": token}
        answer = client.post("/sign-in", data=body)
        assert answer.status_code == 200 or int(answer.headers["Retry-After"]) > 0
        return answer.status_code


def measured(check: Callable[[], bool], tries: list) -> list[float]:
    """Seconds that each check takes while any try is unanswered."""
    waits = []
    while not all(one.done() for one in tries) or len(waits) < 3:
        began = time.monotonic()
        assert check()
        waits.append(time.monotonic() - began)
        time.sleep(0.02)
    return waits
