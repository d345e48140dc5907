"""A browser, a seeded site to look at, and the whole system for the story.

Chromium comes from the system, best as its headless shell (`CHROMIUM` names another one). Without it these tests skip;
in CI they fail.
Screenshots go to `artifacts/`: of pages at which a test failed, and in the full form of those that tests name.
"""

import itertools
import json
import os
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flexmarl.launcher.processes import free_port, port_is_free, wait_until
from tests.browser.visitor import Site, Visitor
from tests.support.chromium import installed_chromium
from tests.support.forked import Process, started
from tests.support.infrastructure import BrowserDiedError, PortTakenError, brought_up

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct-horse-battery"
GUESTS: pytest.StashKey[list[Visitor]] = pytest.StashKey()
"""The windows that a test has opened."""
PORT: pytest.StashKey[int] = pytest.StashKey()
"""Where the session's web processes listen, one after the other."""
PRELOADED = ("tests.browser.preloaded",)
DIED = ("Target page, context or browser has been closed", "Browser closed", "crashed")
"""What Playwright says of a browser that ended while it started."""


class OneBrowser:
    """Chromium and the contexts of its windows, for all modules of these tests that a session runs one after the other.

    While Playwright is up its event loop runs in this thread and stops all others, so it ends with the last of them.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._chromium: Any = None
        self.contexts: list[Any] = []
        """They keep scripts and styles, compiled ones too, from one test to the next."""

    def chromium(self) -> Any:
        """Return the browser. Skips where none is installed; in CI that is a failure."""
        if self._chromium is None:
            path = installed_chromium()
            if not path:
                reason = "Chromium is not installed (apt-get install chromium-headless-shell, or name one in CHROMIUM)"
                if os.environ.get("CI"):
                    pytest.fail(reason)
                pytest.skip(reason)
            from playwright.sync_api import sync_playwright

            playwright = self._open.enter_context(sync_playwright())
            self._chromium = self._open.enter_context(
                brought_up(partial(_launched, playwright, path), BrowserDiedError)
            )
        return self._chromium

    def end(self) -> None:
        """Close the browser, if there is one."""
        self.contexts.clear()
        self._chromium = None
        self._open.close()


BROWSER = OneBrowser()


@pytest.fixture(scope="module")
def chromium() -> Any:
    """Return a browser."""
    return BROWSER.chromium()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close the browser behind the last of the tests here that come one after the other."""
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        BROWSER.end()


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
def seeded_database(services: Any) -> Iterator[tuple[str, Any]]:
    """Return the name of a database with runs in every state, and what its seeding said. Only copied, never served."""
    name = "browser_seed"
    printed = program("seed_database", _environment(services, services.create_database(name)))
    said = json.loads(printed.strip().splitlines()[-1])
    yield name, said
    services.drop_database(name)


@pytest.fixture(scope="module")
def seeded(services: Any, seeded_database: tuple[str, Any], request: pytest.FixtureRequest) -> Iterator[Site]:
    """Serve pages over a copy of the seeded rows: the web process alone, without driver, node or workers.

    A copy and a process per module: what one module's tests change, another's do not meet, in whatever order they run.
    """
    template, said = seeded_database
    name = f"browser_{request.module.__name__.rpartition('.')[2]}"
    environment = _environment(services, services.create_database(name, template))
    environment |= getattr(request.module, "SETTINGS", {})
    web, url = brought_up(partial(_serving, environment, request.session.stash), PortTakenError)
    try:
        assert wait_until(lambda: _answers(url), 240), "the web process did not answer"
        signed_in = {
            person: [{"name": "flexmarl_session", "value": session, "url": url}]
            for person, session in said["sessions"].items()
        }
        yield Site(url, "ada", PASSWORD, said["keys"], environment, signed_in)
    finally:
        web.terminate()
        web.wait(60)
        services.drop_database(name)


def _serving(environment: dict[str, str], stash: pytest.Stash) -> tuple[Process, str]:
    """Start the web process and return its address. Raises PortTakenError where it ended for want of its port.

    All have one port while they can: the browser keeps what it has read of the scripts and styles below one address.
    """
    port = stash.setdefault(PORT, free_port())
    url = f"http://127.0.0.1:{port}"
    web = started("tests.browser.web_process", {**environment, "WEB_PORT": str(port)}, imported=PRELOADED)
    wait_until(lambda: web.poll() is not None or _answers(url), 60)
    if web.poll() is not None and not port_is_free("127.0.0.1", port):
        del stash[PORT]
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
        "FLEXMARL_HUB": "",  # as on a new installation; modules that need one say so in SETTINGS
        "FLEXMARL_RAY_PYTHON": "",  # of the tests with a Ray cluster: here pages say what is missing
        "SEED_PASSWORD": PASSWORD,
    }


def program(name: str, environment: dict[str, str]) -> str:
    """Run one of the programs beside these tests, in an environment of `seeded`, and return what it printed."""
    process = started(f"tests.browser.{name}", environment, imported=PRELOADED)
    printed = process.stdout.read().decode() if process.stdout else ""
    code = process.wait(240)
    assert code == 0, f"{name} ended with {code}; standard error says why"
    return printed


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
            guest.keep_failed(f"failed-{item.name}-{len(report.sections)}")
    return report


@pytest.fixture
def visit(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Visitor]]:
    """Return a function that opens a browser window on a site, each in a context where nobody has been."""
    contexts, used = BROWSER.contexts, itertools.count()
    guests: list[Visitor] = request.node.stash.setdefault(GUESTS, [])

    def make(site: Site, *, theme: str = "light", width: int = 1440, height: int = 900) -> Visitor:
        if (number := next(used)) == len(contexts):
            contexts.append(chromium.new_context(reduced_motion="reduce"))
            contexts[-1].set_default_timeout(60_000)
        page = emptied(contexts[number], site.url)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        guests.append(Visitor(page, site))
        return guests[-1]

    yield make
    for context in contexts:
        for page in context.pages:
            page.close()


def emptied(context: Any, url: str) -> Any:
    """Return the one page of a context that knows nothing of a site but what every visitor of it is sent."""
    context.set_offline(False)
    context.clear_cookies()
    page = context.new_page()
    tools = context.new_cdp_session(page)
    tools.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "local_storage,indexeddb"})
    tools.detach()
    return page
