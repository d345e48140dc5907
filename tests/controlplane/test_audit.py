"""The audit trail: what is written, who may read it, how it is filtered and exported."""

import pytest

from flexmarl.controlplane.common.actions import HIDDEN, changed, record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import AuditEntry

pytestmark = pytest.mark.django_db


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
