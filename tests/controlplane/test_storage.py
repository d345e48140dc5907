"""Storage, as a page and over REST: who takes the room, which limits hold, what they let go next."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import limits
from flexmarl.controlplane.runs.deletions import delete
from flexmarl.store.reads import storage
from flexmarl.store.reads.storage import Pass, Use
from tests.support.controlplane import set_state
from tests.support.markup import markup

pytestmark = pytest.mark.django_db


@pytest.fixture
def measured(make_run, editor):
    """Two ended runs and a living one; the first ended before the second."""
    first, second, living = make_run(editor), make_run(editor), make_run(editor, "running")
    for run, days in ((first, 20), (second, 10)):
        set_state(run, status="completed", finished_at=timezone.now() - timedelta(days=days))
        store_connection().execute(
            "INSERT INTO store.sample (run_id, draw, member, attempt, role, turn, policy, version, segments, n_prompt,"
            " n_response, finish, payload) VALUES (%s, 0, 0, 1, 'a', 0, 'a', 0, '{}', 0, 0, 'stop', '')",
            [run.no],
        )
    uses = [Use(run.no, "samples", 10, 3 * limits.GIB) for run in (first, second, living)]
    done = [{"run": first.no, "kind": "log", "amount": 7, "kept": ""}]
    storage.save(store_connection(), uses, Pass(1000.0, 1002.0, "box", {"state": 5}, done))
    return first, second, living


def admin(person):
    client = Client()
    client.force_login(person("cluster_admin", "ada"))
    return client


def test_who_takes_how_much_is_told(measured, admin_api):
    found = admin_api.get("/api/v1/storage").json()
    assert {row["kind"]: row["bytes"] for row in found["kinds"]}["samples"] == 9 * limits.GIB
    assert found["projects"] == [{"project": "default", "runs": 3, "bytes": 9 * limits.GIB}]
    assert {row["key"] for row in found["runs"]} == {run.key for run in measured}
    assert (found["host"], found["seconds"], found["places"]) == ("box", 2.0, [{"name": "state", "bytes": 5}])
    assert found["removed"] == [{"key": measured[0].key, "kind": "log", "amount": 7, "kept": ""}]


def test_what_goes_next_is_told_with_its_cause(measured, admin_api, settings):
    first, second, _ = measured
    settings.KEEP_SAMPLES_DAYS, settings.KEEP_SAMPLES_GIB = 30, 8
    samples = admin_api.get("/api/v1/storage").json()["limits"][0]
    assert (samples["days"], samples["bytes"], samples["used_bytes"]) == (30, 8 * limits.GIB, 9 * limits.GIB)
    assert [(row["key"], row["reason"], row["due_at"] is None) for row in samples["next"]] == [
        (first.key, "size", True),
        (second.key, "age", False),
    ]


def test_the_page_shows_it_and_what_is_being_deleted(measured, person, editor):
    from flexmarl.controlplane.accounts.queries import actor_of_user

    delete(actor_of_user(editor), measured[1])
    text = markup(admin(person).get("/storage"))
    for words in (measured[0].key, measured[1].key, "Runs being deleted", "Largest runs", "FLEXMARL_KEEP_SAMPLES_GIB"):
        assert words in text


def test_before_the_first_pass_the_page_says_so(person):
    assert "Not measured yet" in markup(admin(person).get("/storage"))


def test_only_cluster_admins_see_it(api, browser):
    assert api.get("/api/v1/storage").status_code == 403
    assert browser.get("/storage").status_code == 403


def test_the_run_page_offers_deletion_to_who_may_and_when(make_run, editor, browser, person):
    ended, living = make_run(editor, "completed"), make_run(editor, "running")
    text = markup(browser.get(f"/runs/{ended.key}"))
    assert f'data-delete-run="{ended.id}"' in text
    assert "Only ended runs and drafts can be deleted" not in text
    assert "Only ended runs and drafts can be deleted" in markup(browser.get(f"/runs/{living.key}"))
    viewer = Client()
    viewer.force_login(person("viewer", "vic"))
    assert "data-delete-run" not in markup(viewer.get(f"/runs/{ended.key}"))
    assert 'data-bulk="delete"' in markup(browser.get("/runs"))
