"""A browser, a seeded site to look at, and the whole system for the story.

Chromium comes from the system, best as its headless shell (`CHROMIUM` names another one). Without it these tests skip;
in CI they fail.
Screenshots go to `artifacts/`.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flexmarl.launcher.processes import free_port, port_is_free, wait_until
from tests.browser.visitor import Site, Visitor
from tests.support.chromium import installed_chromium
from tests.support.hub_datasets import HUB
from tests.support.infrastructure import BrowserDiedError, PortTakenError, brought_up

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct-horse-battery"
GUESTS: pytest.StashKey[list[Visitor]] = pytest.StashKey()
"""The windows that a test has opened."""
DIED = ("Target page, context or browser has been closed", "Browser closed", "crashed")
"""What Playwright says of a browser that ended while it started."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Return a browser. Per module: while Playwright is up its event loop runs in this thread and stops all others."""
    path = installed_chromium()
    if not path:
        reason = "Chromium is not installed (apt-get install chromium-headless-shell, or name one in CHROMIUM)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = brought_up(partial(_launched, playwright, path), BrowserDiedError)
        yield browser
        browser.close()


def _launched(playwright: Any, path: str) -> Any:
    """Start Chromium. Raises BrowserDiedError where it ended before it answered."""
    from playwright.sync_api import Error

    try:
        return playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=60_000
        )
    except Error as error:
        if any(words in error.message for words in DIED):
            raise BrowserDiedError(error.message.splitlines()[0]) from error
        raise


@pytest.fixture(scope="session")
def seeded_database(services: Any) -> Iterator[tuple[str, list[str]]]:
    """Return the name of a database with runs in every state, and their keys. Only copied, never served."""
    name = "browser_seed"
    environment = _environment(services, services.create_database(name))
    _manage(environment, "manage.py", "migrate", "-v0")
    keys = json.loads(_manage(environment, "tests/browser/seed_database.py").strip().splitlines()[-1])
    yield name, keys
    services.drop_database(name)


@pytest.fixture(scope="module")
def seeded(services: Any, seeded_database: tuple[str, list[str]], request: pytest.FixtureRequest) -> Iterator[Site]:
    """Serve pages over a copy of the seeded rows: the web process alone, without driver, node or workers.

    A copy per module: what one module's tests change, another's do not meet, in whatever order they run.
    """
    template, keys = seeded_database
    name = f"browser_{request.module.__name__.rpartition('.')[2]}"
    environment = _environment(services, services.create_database(name, template))
    web, url = brought_up(partial(_serving, environment), PortTakenError)
    try:
        assert wait_until(lambda: _answers(url), 240), "the web process did not answer"
        yield Site(url, "ada", PASSWORD, keys, environment)
    finally:
        web.terminate()
        web.wait(60)
        services.drop_database(name)


def _serving(environment: dict[str, str]) -> "tuple[subprocess.Popen[bytes], str]":
    """Start the web process and return its address. Raises PortTakenError where it ended for want of its port."""
    port = free_port()
    serve = ["-m", "uvicorn", "--lifespan", "off", "--port", str(port), "--log-level", "warning"]
    web = subprocess.Popen(
        [sys.executable, *serve, "flexmarl.controlplane.asgi:application"], env=environment, cwd=ROOT
    )
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: web.poll() is not None or _answers(url), 60)
    if web.poll() is not None and not port_is_free("127.0.0.1", port):
        raise PortTakenError(f"another program took port {port} of the web process")
    return web, url


def _environment(services: Any, database_url: str) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": database_url,
        "REDIS_URL": services.redis_url,
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.development",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")]),
        "FLEXMARL_SECRET_KEY": "browser-tests",
        "FLEXMARL_HUB": HUB,
        "FLEXMARL_RAY_PYTHON": "",  # of the tests with a Ray cluster: here pages say what is missing
        "SEED_PASSWORD": PASSWORD,
    }


def _manage(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/sign-in", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Say with a failure what its pages showed: a locator that was not found tells nothing of what stood there."""
    report = yield
    if report.failed and report.when == "call":
        for guest in item.stash.get(GUESTS, []):
            report.sections.append(("page", guest.description()))
    return report


@pytest.fixture
def visit(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Visitor]]:
    """Return a function that opens a browser window on a site."""
    contexts = []
    guests: list[Visitor] = request.node.stash.setdefault(GUESTS, [])

    def make(site: Site, *, theme: str = "light", width: int = 1440, height: int = 900) -> Visitor:
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        guests.append(Visitor(context.new_page(), site))
        return guests[-1]

    yield make
    for context in contexts:
        context.close()
