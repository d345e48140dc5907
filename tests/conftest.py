"""Services and databases of the tests.

One PostgreSQL and one Valkey per test session, started only when a test asks for them (or none, when DATABASE_URL and
REDIS_URL name running ones: tests then make and drop their own databases there). Their addresses are chosen before
anything is collected, since Django reads them when its settings load.
"""

import gc
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql
from xdist.scheduler import LoadScopeScheduling

from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.launcher.processes import free_port
from flexmarl.launcher.valkey import EmbeddedValkey
from tests.support.forms import FULL
from tests.support.infrastructure import REMARKS, DatabaseNotSetUpError, PortTakenError, brought_up, summary
from tests.support.system import EXTERNAL_KEY, EXTERNAL_PORT, EXTERNAL_SECRET, HUB_PORT, MANY_DEVICES, System

ROOT = Path(__file__).resolve().parents[1]
WITH_DJANGO = ("tests/controlplane", "tests/browser", "tests/integration/controlplane")
"""Folders whose tests may import a Django model; running others does not load Django."""

THROW_AWAY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "64MB"}


@dataclass
class Services:
    """The session's servers. `ensure` starts the embedded ones at first use."""

    external: bool
    database_url: str
    """A maintenance database of the server."""
    redis_url: str
    postgres: EmbeddedPostgres | None = None
    valkey: EmbeddedValkey | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ensure(self) -> None:
        """Start what does not run yet."""
        with self._lock:
            for service in (self.postgres, self.valkey):
                if service is not None and not service.alive():
                    brought_up(partial(_start_announced, service, service.port), PortTakenError, DatabaseNotSetUpError)

    def stop(self) -> None:
        """End the embedded servers."""
        for service in (self.valkey, self.postgres):
            if service is not None:
                service.stop()

    def url_of(self, database: str) -> str:
        """Return the URL of another database of the same server."""
        return urlunsplit(urlsplit(self.database_url)._replace(path=f"/{database}"))

    def create_database(self, name: str, template: str = "template1") -> str:
        """Make a database and return its URL."""
        self.ensure()
        # The usual strategy writes the template to the log: twice as long for one as small as ours.
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        statement = made.format(sql.Identifier(name), sql.Identifier(template))
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(statement)
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, also when connections are open."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _start_announced(service: EmbeddedPostgres | EmbeddedValkey, port: int) -> None:
    """Start a server at the address that is known already. Raises PortTakenError or DatabaseNotSetUpError."""
    service.port = port
    try:
        service.start()
    except LaunchError as error:
        if "could not be set up" in str(error):
            raise DatabaseNotSetUpError(str(error)) from error
        raise
    if service.port != port:
        service.stop()
        raise PortTakenError(f"another program took port {port} of {service.name}")


def _make_services(home: Home) -> Services:
    """Choose the session's addresses; nothing is started yet."""
    database_url, redis_url = os.environ.get("DATABASE_URL"), os.environ.get("REDIS_URL")
    if database_url and redis_url:
        return Services(external=True, database_url=database_url, redis_url=redis_url)
    home.prepare()
    postgres = EmbeddedPostgres(home, free_port(), THROW_AWAY)
    valkey = EmbeddedValkey(home, free_port())
    return Services(False, postgres.url, valkey.url, postgres, valkey)


def _needs_django(config: pytest.Config) -> bool:
    """Tell whether a path asked for may hold tests of the control plane or the pages."""
    asked = [Path(str(argument).split("::")[0]).resolve() for argument in config.args] or [ROOT]
    folders = [ROOT / folder for folder in WITH_DJANGO]
    return any(path.is_relative_to(folder) or folder.is_relative_to(path) for path in asked for folder in folders)


COLLECTED_AFTER = 50_000
"""Allocations between two runs of Python's garbage collector, not 700: Django, torch and thousands of tests stay in
memory, and looking through them again and again took a tenth of the time."""
SERVICES = pytest.StashKey[Services]()
HOME = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Announce the addresses and load Django where tests may need it.

    With `-n`, each worker is a session with servers of its own; the process that hands out the tests has none, and
    must not hand its environment on.
    """
    gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    home = Path(tempfile.mkdtemp(prefix="flexmarl-tests-"))
    home.chmod(0o711)  # the service account passes through
    config.stash[HOME] = home
    services = config.stash[SERVICES] = _make_services(Home(home / "home"))
    if hasattr(config, "workerinput"):
        services.ensure()  # at once: the others look for free ports, too
    os.environ["DATABASE_URL"] = services.database_url
    os.environ["REDIS_URL"] = services.redis_url
    os.environ.setdefault("FLEXMARL_HOME", str(home / "home"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if _needs_django(config):
        os.environ["DJANGO_SETTINGS_MODULE"] = "flexmarl.controlplane.settings.test"
        import django

        django.setup()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the full form runs."""
    left = [] if FULL else [item for item in items if item.get_closest_marker("full")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    """Leave what is loaded by now out of every later run of the garbage collector: it stays to the end.

    Looking it through takes a second each time: for who asks for a run, and several times when the session ends.
    """
    gc.freeze()


SHARED_INSTALLATION = re.compile(r"\binstallations\((\w+)\)")


@cache
def installation_of(file: str) -> str:
    """Return which shared installation a file's tests use; empty: none."""
    found = SHARED_INSTALLATION.search((ROOT / file).read_text())
    return f"{Path(file).parent} on installation {found[1]}" if found else ""


class WholeFiles(LoadScopeScheduling):
    """With `-n`, a worker takes whole files, and one worker all files that share something.

    The control plane's share a database, and pytest-django has put the tests that roll back before those that commit.
    Others share an installation, which runs no longer than they do: also one that is idle takes its part of a core.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "controlplane" if file.startswith("tests/controlplane/") else installation_of(file) or file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    """Return who hands out the tests."""
    return WholeFiles(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With `-n`, hand what the summary must say to the process that writes it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["remarks"] = REMARKS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what one of several workers has to say."""
    REMARKS.extend((heading, text) for heading, text in getattr(node, "workeroutput", {}).get("remarks", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was started again and which bounds grew: a result is read with both in mind."""
    if lines := summary(REMARKS):
        terminalreporter.section("what bears on this result")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers and remove their data."""
    if SERVICES in config.stash:
        config.stash[SERVICES].stop()
        shutil.rmtree(config.stash[HOME], ignore_errors=True)


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Services:
    """Return the running servers."""
    services = pytestconfig.stash[SERVICES]
    services.ensure()
    return services


@pytest.fixture(scope="session")
def django_db_setup(services: Services, django_db_setup: None) -> None:
    """Start the servers before pytest-django makes its test database."""


@pytest.fixture
def make_database(services: Services) -> Iterator[Callable[[str], str]]:
    """Return a function that makes a fresh database from a template and returns its URL; all are dropped at the end."""
    made: list[str] = []

    def make(template: str = "template1") -> str:
        made.append(f"t_{secrets.token_hex(6)}")
        return services.create_database(made[-1], template)

    yield make
    for name in made:
        services.drop_database(name)


@pytest.fixture
def database_url(make_database: Callable[[str], str]) -> str:
    """Return the URL of a fresh, empty database."""
    return make_database("template1")


@pytest.fixture(scope="session")
def store_template(services: Services) -> Iterator[str]:
    """Return the name of a database that holds the store's schema and nothing else."""
    from flexmarl.store import schema

    name = f"store_template_{secrets.token_hex(4)}"
    with psycopg.connect(services.create_database(name), autocommit=True) as connection:
        schema.apply(connection)
    yield name
    services.drop_database(name)


@pytest.fixture
def store_url(store_template: str, make_database: Callable[[str], str]) -> str:
    """Return the URL of a fresh database with the store's schema."""
    return make_database(store_template)


@pytest.fixture
def store_conn(store_url: str) -> Iterator[psycopg.Connection]:
    """Return an autocommit connection to a fresh database with the store's schema."""
    with psycopg.connect(store_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def redis_url(services: Services) -> str:
    """Return the URL of the session's broker, emptied."""
    import redis

    with redis.Redis.from_url(services.redis_url) as client:
        client.flushall()
    return services.redis_url


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """Return an empty folder that the service account may pass through (pytest's own are closed to it)."""
    folder = Path(tempfile.mkdtemp(prefix="flexmarl-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


INSTALLATIONS: dict[int, System] = {}
"""Running ones, by their number of devices."""


@pytest.fixture(scope="session")
def installations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], System]]:
    """Return a function that gives a running installation with so many devices; 0 for as many as there are cores.

    Tests share it that leave it as they found it: their runs have ended, what they killed is back. It may read models
    in the session's temporary folders, and ask external models of this machine.
    """

    def get(devices: int) -> System:
        system = INSTALLATIONS.get(devices)
        if system is None or system.process is None or system.process.poll() is not None:
            folder = tmp_path_factory.mktemp("installation")
            folder.chmod(0o711)  # the service account passes through
            environment = {
                "FLEXMARL_MODEL_ROOTS": str(tmp_path_factory.getbasetemp()),
                "FLEXMARL_HUB": f"http://127.0.0.1:{HUB_PORT}",
                "FLEXMARL_EXTERNAL_HOSTS": f"127.0.0.1:{EXTERNAL_PORT}",
                f"FLEXMARL_EXTERNAL_SECRET_{EXTERNAL_SECRET}": EXTERNAL_KEY,
            }
            environment |= {"FLEXMARL_CPU_SHARES": str(devices)} if devices else {}
            # Where many run, what they make has copies as well.
            environment |= {"FLEXMARL_OBJECT_STORE": f"file://{folder}/bucket"} if devices == MANY_DEVICES else {}
            system = INSTALLATIONS[devices] = System(folder / "home", environment=environment)
            system.start()
        return system

    yield get
    _stop_installations()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop a shared installation behind the last test that uses it."""
    if nextitem is None or installation_of(_file_of(nextitem)) != installation_of(_file_of(item)):
        _stop_installations()


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _stop_installations() -> None:
    while INSTALLATIONS:
        INSTALLATIONS.popitem()[1].stop()


@pytest.fixture(scope="session")
def python() -> str:
    """Return the interpreter that runs the tests."""
    return sys.executable
