"""A started run in a fresh store."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.support.store_story import Story


@pytest.fixture
def story(store_conn: psycopg.Connection) -> Story:
    return Story(store_conn).start()


@pytest.fixture
def another(store_url: str) -> Iterator[Callable[[], psycopg.Connection]]:
    """Return a function that opens another connection to the same store."""
    opened: list[psycopg.Connection] = []

    def open_one() -> psycopg.Connection:
        opened.append(psycopg.connect(store_url, autocommit=True))
        return opened[-1]

    yield open_one
    for conn in opened:
        conn.close()
