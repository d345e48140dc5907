"""Machines that vanish without closing a connection: the next server is asked, and each side notices within bounds."""

import os
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from flexmarl.store.connection import NOTICED, connect
from tests.support.machine import slowness
from workers.database import open_pool

pytestmark = pytest.mark.services

SHORT_S = 5.0


@pytest.fixture
def silent() -> Iterator[int]:
    """Return the port of a server that takes connections and says nothing, as a machine that hangs."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        yield server.getsockname()[1]


def test_a_server_that_says_nothing_costs_a_connection_five_seconds(store_url: str, silent: int) -> None:
    url = urlsplit(store_url)
    own = f"{url.username}:{url.password}@127.0.0.1:{silent},{url.hostname}:{url.port}"
    several = urlunsplit(url._replace(netloc=own, query="target_session_attrs=read-write"))
    began = time.monotonic()
    with connect(several, "test") as conn:
        assert conn.info.port == url.port
    taken = time.monotonic() - began
    assert SHORT_S * 0.9 < taken < (SHORT_S + 2) * slowness()


def test_both_sides_look_whether_the_other_is_there(store_url: str) -> None:
    with connect(store_url, "test") as conn, open_pool(store_url, "test", 1) as pool, pool.connection() as pooled:
        for one in (conn, pooled):
            with socket.socket(fileno=os.dup(one.fileno())) as raw:
                assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == NOTICED["keepalives_idle"]
                assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == NOTICED["tcp_user_timeout"]
        assert shown(conn) == ["10", "5", "3"], "the server ends a session whose client's machine is gone"


def shown(conn: psycopg.Connection) -> list[str]:
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    return [str(row[0]) for name in names if (row := conn.execute(f"SHOW {name}").fetchone())]
