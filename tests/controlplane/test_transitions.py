"""Every status against every verb, also behind a verb that is still pending."""

import itertools

import pytest

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import TRANSITIONS, RunStatus, next_status
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.problems import InvalidState
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import actions, queries
from flexmarl.controlplane.runs.choices import allowed_now
from flexmarl.controlplane.runs.models import Operation, RunStateRow
from flexmarl.store.control import inbox
from tests.support.controlplane import set_state

pytestmark = pytest.mark.django_db


def test_every_status_meets_every_verb(editor, make_run) -> None:
    run, actor = make_run(editor), actor_of_user(editor)
    for status, verb in itertools.product(RunStatus, Verb):
        set_state(run, status=status, pending_verb="")
        waiting = inbox.waiting(store_connection(), run.no)
        legal = verb in TRANSITIONS[status]
        if legal:
            actions.act(actor, run, verb)
            assert RunStateRow.objects.get(pk=run.no).pending_verb == verb
            assert RunStateRow.objects.get(pk=run.no).status == status, "the driver alone moves a run"
        else:
            with pytest.raises(InvalidState) as refused:
                actions.act(actor, run, verb)
            assert refused.value.extra == {"state": status, "allowed_actions": list(TRANSITIONS[status])}
        assert inbox.waiting(store_connection(), run.no) == waiting + legal


def test_a_pending_verb_decides_what_is_allowed_next() -> None:
    for status, verb in itertools.product(RunStatus, Verb):
        if verb in TRANSITIONS[status]:
            assert set(allowed_now(status, verb)) == set(TRANSITIONS[next_status(status, verb)])
            assert verb not in allowed_now(status, verb), "the same verb twice is refused"
        else:
            assert set(allowed_now(status, verb)) == set(TRANSITIONS[status])


def test_an_illegal_verb_answers_409_with_the_allowed_ones(api, editor, make_run) -> None:
    run = make_run(editor, RunStatus.PAUSED)
    answer = api.post(f"/api/v1/runs/{run.id}/actions/pause")
    assert answer.status_code == 409
    problem = answer.json()
    assert (problem["code"], problem["state"]) == ("invalid_state", "paused")
    assert problem["allowed_actions"] == ["resume", "stop", "kill"]
    assert not Operation.objects.exists()


def test_an_unknown_verb_is_no_path(api, editor, make_run) -> None:
    assert api.post(f"/api/v1/runs/{make_run(editor).id}/actions/explode").status_code == 404


def test_a_verb_leaves_an_audit_row_with_the_request_id(api, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    api.post(f"/api/v1/runs/{run.id}/actions/pause", {"reason": "lunch"}, headers={"X-Request-ID": "abc-123"})
    entry = AuditEntry.objects.get(action="run.pause")
    assert (entry.actor_name, entry.request_id, entry.target_id) == ("edith", "abc-123", str(run.id))
    assert entry.detail["reason"] == "lunch"


def test_a_refused_start_creates_no_run(editor, make_run, client_of) -> None:
    from tests.support.controlplane import SPEC, key

    weak = client_of(editor, ["runs:read", "runs:write"])
    answer = weak.post("/api/v1/runs", {"spec": SPEC, "start": True}, headers={"Idempotency-Key": key()})
    assert answer.status_code == 403
    assert queries.runs(Actor.system()).count() == 0
