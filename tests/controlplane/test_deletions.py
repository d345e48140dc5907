"""Deletion of runs: over REST, in bulk, by the janitor; refused with a next step; the same answer when asked again."""

from pathlib import Path

import pytest

from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.management.commands.drive import database_url
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.runs.retention import Janitor
from flexmarl.store.connection import connect
from flexmarl.store.control import deletions
from flexmarl.store.data import lineage
from flexmarl.store.data.segments import SegmentFolder
from tests.support.controlplane import set_state

pytestmark = [pytest.mark.services, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def forget():
    yield
    for table in ("run_deletion", "segment", "lineage", "node"):
        store_connection().execute(f"DELETE FROM store.{table}")


def delete(api, run):
    return api.delete(f"/api/v1/runs/{run.id}")


def janitor(home: Path) -> list[int]:
    with connect(database_url(), "test") as conn:
        return Janitor(database_url(), home).delete(conn)


def test_an_ended_run_goes_with_everything_of_it(client_of, make_run, editor, tmp_path):
    api, run = client_of(editor), make_run(editor, "completed")
    folder = SegmentFolder(tmp_path / "payloads")
    [placed] = folder.append(run.no, 1, [b"1234"])
    folder.register(store_connection(), run.no, 1, [placed])
    folder.close()
    answer = delete(api, run)
    assert (answer.status_code, answer.json()["state"], answer.json()["action"]) == (202, "pending", "delete")
    assert answer["Location"] == answer.json()["url"]
    assert api.get(f"/api/v1/runs/{run.id}").status_code == 404
    assert [one["id"] for one in api.get("/api/v1/runs").json()["results"]] == []
    assert janitor(tmp_path) == [run.no]
    assert list((tmp_path / "payloads").glob("run-*")) == []
    done = api.get(answer.json()["url"]).json()
    assert (done["state"], done["result"]) == ("succeeded", {"status": "deleted"})
    [entry] = AuditEntry.objects.filter(action="run.delete")
    assert (entry.actor_name, entry.target_name, entry.before["status"]) == (editor.username, run.key, "completed")


def test_asked_again_the_answer_is_the_same(client_of, make_run, editor, tmp_path):
    api, run = client_of(editor), make_run(editor)
    first = delete(api, run).json()
    assert delete(api, run).json()["id"] == first["id"]
    janitor(tmp_path)
    again = api.delete(f"/api/v1/runs/{run.key}")
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (202, first["id"], "succeeded")
    assert AuditEntry.objects.filter(action="run.delete").count() == 1


@pytest.mark.parametrize("status", ["queued", "running", "paused"])
def test_a_run_that_lives_is_refused_with_what_to_do(client_of, make_run, editor, status):
    api, run = client_of(editor), make_run(editor, status)
    answer = delete(api, run)
    assert answer.status_code == 409
    assert "Stop or kill it first" in answer.json()["detail"]
    assert Run.objects.filter(pk=run.pk).exists()


def test_who_may_not_edit_a_run_may_not_delete_it(client_of, make_run, editor, person):
    run = make_run(editor, "completed")
    assert delete(client_of(person("editor", "eve")), run).status_code == 403
    assert delete(client_of(person("viewer", "vic")), run).status_code == 403
    assert Run.objects.filter(pk=run.pk).exists()


def test_a_fork_without_its_own_copy_is_named(client_of, make_run, editor):
    api, run, fork = client_of(editor), make_run(editor, "completed"), make_run(editor)
    lineage.put(store_connection(), fork.no, [lineage.VersionOrigin("a", run.no, "a", 1, 1, False, "d")])
    answer = delete(api, run)
    assert (answer.status_code, answer.json()["code"], answer.json()["forks"]) == (409, "has_waiting_forks", [fork.key])
    lineage.bound(store_connection(), fork.no, "a")
    assert delete(api, run).status_code == 202


def test_many_are_deleted_at_once_and_a_dry_run_deletes_none(client_of, make_run, editor, tmp_path):
    api, ended, living = client_of(editor), make_run(editor, "failed"), make_run(editor, "running")
    body = {"action": "delete", "ids": [str(ended.id), str(living.id)]}
    would = api.post("/api/v1/runs/bulk", {**body, "dry_run": True}, format="json").json()
    assert [one["outcome"] for one in would["results"]] == ["would", "refused"]
    assert janitor(tmp_path) == []
    done = api.post("/api/v1/runs/bulk", body, format="json").json()
    assert [one["outcome"] for one in done["results"]] == ["done", "refused"]
    assert done["results"][0]["operation"].startswith("/api/v1/operations/")
    assert janitor(tmp_path) == [ended.no]


def test_a_janitor_that_was_killed_is_followed_by_the_next(client_of, make_run, editor, tmp_path, monkeypatch):
    api, run = client_of(editor), make_run(editor, "completed")
    answer = delete(api, run).json()
    with monkeypatch.context() as broken:
        broken.setattr(deletions, "delete_rows", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            janitor(tmp_path)
    assert api.get(answer["url"]).json()["state"] == "pending"
    assert janitor(tmp_path) == [run.no]
    assert api.get(answer["url"]).json()["state"] == "succeeded"


def test_a_deletion_ends_when_the_nodes_have_removed_their_files(client_of, make_run, editor, tmp_path):
    conn = store_connection()
    conn.execute("INSERT INTO store.node (name, address, incarnation) VALUES ('box', 'box:1', 'b1')")
    api, run = client_of(editor), make_run(editor, "completed")
    url = delete(api, run).json()["url"]
    janitor(tmp_path)
    assert api.get(url).json()["state"] == "running"
    deletions.cleared(conn, "box", {run.no})
    assert api.get(url).json()["state"] == "succeeded"


def test_a_verb_that_comes_too_late_finds_no_run(make_run, editor):
    from flexmarl.contracts.events import Verb
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.common.problems import NotFound
    from flexmarl.controlplane.runs import actions
    from flexmarl.controlplane.runs.deletions import delete as delete_run

    actor, run = actor_of_user(editor), make_run(editor)
    delete_run(actor, run)
    with pytest.raises(NotFound):
        actions.act(actor, run, Verb.START)


def test_a_large_run_gets_a_number_with_tables_of_its_own(make_run, editor, monkeypatch):
    from flexmarl.controlplane.runs import numbers
    from flexmarl.store.partitions import is_reserved

    assert not is_reserved(make_run(editor).no)
    monkeypatch.setattr(numbers, "LARGE_SAMPLES", 1)
    large = make_run(editor)
    assert is_reserved(large.no)
    set_state(large, status="completed")
