"""A database of another release is refused by name, and nothing is written to it."""

import psycopg
import pytest

from flexmarl.store import schema
from flexmarl.store.errors import SchemaMismatch

pytestmark = pytest.mark.services


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE store.meta SET value = '99' WHERE key = 'version'", "99"),
        ("DROP SCHEMA store CASCADE", "run `manage.py migrate`"),
    ],
)
def test_another_schema_is_refused_with_what_differs(store_conn: psycopg.Connection, damage: str, said: str) -> None:
    schema.check(store_conn)
    store_conn.execute(damage)
    with pytest.raises(SchemaMismatch) as refused:
        schema.check(store_conn)
    assert refused.value.code == "schema_mismatch"
    assert said in str(refused.value)


def test_a_newer_database_is_not_changed_by_an_older_release(store_conn: psycopg.Connection) -> None:
    store_conn.execute("UPDATE store.meta SET value = '99' WHERE key = 'version'")
    before = store_conn.execute("SELECT key, value FROM store.meta ORDER BY key").fetchall()
    with pytest.raises(SchemaMismatch):
        schema.apply(store_conn)
    assert store_conn.execute("SELECT key, value FROM store.meta ORDER BY key").fetchall() == before
