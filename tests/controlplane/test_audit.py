"""The audit trail: what is written, who may read it, how it is filtered and exported."""

import csv
import io
import re
from pathlib import Path

import pytest

from flexmarl.contracts.events import Verb
from flexmarl.controlplane.accounts import audit
from flexmarl.controlplane.common.actions import HIDDEN, changed, record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import AuditEntry
from webui.views import auditing

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_keeps_what_changed_and_nothing_else() -> None:
    row = record(
        Actor.system(), "pool.update", "pool", 7, "gpu", before={"a": 1, "b": 2}, after={"a": 1, "b": 3, "c": 4}
    )
    stored = AuditEntry.objects.get(pk=row.pk)
    assert (stored.before, stored.after) == ({"b": 2}, {"b": 3, "c": 4})
    assert (stored.project, stored.target_id) == ("", "7")


def test_one_side_alone_is_kept_whole() -> None:
    assert changed(None, {"a": 1}) == (None, {"a": 1})
    assert changed({"a": 1}, None) == ({"a": 1}, None)
    assert changed({"a": 1}, {"a": 1}) == ({}, {})


def test_members_named_like_secrets_are_hidden_at_any_depth() -> None:
    row = record(
        Actor.system(),
        "user.update",
        "user",
        1,
        before={"password": "old"},
        after={"password": "new", "nested": [{"api_key": "k"}]},
        reason="r",
        client_secret="s",
    )
    assert row.before == {"password": HIDDEN}
    assert row.after == {"password": HIDDEN, "nested": [{"api_key": HIDDEN}]}
    assert row.detail == {"reason": "r", "client_secret": HIDDEN}


API = "/api/v1/audit"


@pytest.fixture
def trail(person, client_of):
    """Return rows of two projects and the clients of an auditor, an admin of alpha, and an editor."""
    for index in range(7):
        record(Actor.system(), "run.stop", "run", index, f"r{index}", project="alpha" if index % 2 else "beta")
    boss = person("project_admin", "boss", "alpha")
    return client_of(person("auditor")), client_of(boss), client_of(person("editor"))


def names(answer) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [row["target_name"] for row in answer.json()["results"]]


def test_rows_are_read_by_project(trail) -> None:
    auditor, boss, editor = trail
    assert sorted(names(auditor.get(f"{API}?action=run.stop"))) == [f"r{index}" for index in range(7)]
    assert sorted(names(boss.get(f"{API}?action=run.stop"))) == ["r1", "r3", "r5"]
    assert names(boss.get(f"{API}?project=beta")) == []
    hidden = AuditEntry.objects.get(target_name="r0")
    assert boss.get(f"{API}/{hidden.id}").status_code == 404
    assert auditor.get(f"{API}/{hidden.id}").json()["target_name"] == "r0"
    assert editor.get(API).status_code == 403


def test_pages_neither_skip_nor_repeat_while_rows_are_added(trail) -> None:
    auditor, seen, url = trail[0], [], f"{API}?action=run.stop&limit=3"
    before = names(auditor.get(f"{API}?action=run.stop"))
    while url:
        answer = auditor.get(url)
        seen += names(answer)
        record(Actor.system(), "run.stop", "run", 99, "new")
        url = answer.json()["next"]
    assert seen == before


def test_filters_join_and_unknown_ones_are_refused(trail) -> None:
    auditor = trail[0]
    record(Actor(None, "nora", frozenset(), "req-7"), "pool.create", "pool", 1, "gpu")
    assert names(auditor.get(f"{API}?request_id=req-7")) == ["gpu"]
    assert names(auditor.get(f"{API}?actor=nora")) == ["gpu"]
    assert names(auditor.get(f"{API}?target_kind=pool&target_kind=run&target_name__ic=G")) == ["gpu"]
    assert names(auditor.get(f"{API}?until=2020-01-01T00:00:00Z")) == []
    assert len(names(auditor.get(f"{API}?since=2020-01-01T00:00:00Z&action=run.stop"))) == 7
    assert auditor.get(f"{API}?actr=nora").json()["legal_parameters"][0] == "actor"


def test_the_export_holds_the_same_rows_as_the_list(trail, monkeypatch) -> None:
    monkeypatch.setattr(audit, "_CHUNK", 2)
    for client in trail[:2]:
        answer = client.get(f"{API}/export?action=run.stop")
        rows = list(csv.DictReader(io.StringIO(b"".join(answer).decode())))
        assert [row["target_name"] for row in rows] == names(client.get(f"{API}?action=run.stop"))
    assert trail[2].get(f"{API}/export").status_code == 403
    assert trail[0].get(f"{API}/export?nothing=1").status_code == 400


def test_the_trail_has_a_word_for_everything_that_is_recorded() -> None:
    sources = (ROOT / "platform/flexmarl/controlplane").rglob("*.py")
    calls = [re.findall(r'record\(\s*[^)]*?"[a-z_]+\.([a-z_]+)"', path.read_text("utf-8")) for path in sources]
    recorded = {verb for found in calls for verb in found}
    assert {"create", "fork", "check"} <= recorded
    assert (recorded | set(Verb)) - set(auditing.DONE) == set()
