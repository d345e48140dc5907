"""Two leases on one device: of one run, an engine's and a trainer's, and nobody else's until both have ended."""

import psycopg
import pytest

from flexmarl.contracts.commands import RequestDevices
from flexmarl.contracts.events import DeviceUse
from flexmarl.store.control import leases
from tests.support.store_story import Story

ENGINE = [("box.cpu0", DeviceUse.ENGINE)]


@pytest.fixture
def story(store_conn):
    own = Story(store_conn).start()
    own.register()
    return own


def granted(story):
    no = story.issue(RequestDevices(pool="default", engines=1, trainers=0, beside=1))
    return leases.grant(story.conn, story.lease, no, ENGINE)


def ended(story, lease_id):
    story.conn.execute("UPDATE store.lease SET state = 'ended' WHERE id = %s", [lease_id])


def insert(story, run_id, use, beside=None, device="box.cpu0"):
    story.conn.execute(
        "INSERT INTO store.lease (device_id, run_id, use, beside) VALUES (%s, %s, %s, %s)",
        [device, run_id, use, beside],
    )


def seats(story):
    return story.conn.execute("SELECT coalesce(sum(devices), 0) FROM store.seat").fetchone()[0]


def test_a_trainer_is_put_beside_its_engine_and_both_are_one_device(story):
    engine, trainer = granted(story)
    assert (engine.use, trainer.use, trainer.beside) == (DeviceUse.ENGINE, DeviceUse.TRAINER, engine.lease_id)
    assert engine.device_id == trainer.device_id == "box.cpu0"
    assert [device.id for device in leases.supply(story.conn).free] == ["box.cpu1"]
    assert seats(story) == 1


def test_a_shared_device_stays_the_runs_until_both_have_ended(story):
    engine, trainer = granted(story)
    ended(story, engine.lease_id)
    assert [device.id for device in leases.supply(story.conn).free] == ["box.cpu1"]
    assert seats(story) == 1
    with pytest.raises(psycopg.errors.UniqueViolation):
        insert(story, 2, "engine")
    ended(story, trainer.lease_id)
    insert(story, 2, "engine")


def test_nobody_else_is_put_on_a_shared_device(story):
    engine, trainer = granted(story)
    with pytest.raises(psycopg.errors.UniqueViolation):
        insert(story, 1, "trainer", engine.lease_id)  # a third one
    with pytest.raises(psycopg.errors.UniqueViolation):
        insert(story, 2, "engine")
    ended(story, trainer.lease_id)
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        insert(story, 2, "trainer", engine.lease_id)  # another run
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        insert(story, 1, "trainer", engine.lease_id, "box.cpu1")  # another device
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(story, 1, "engine", engine.lease_id)
