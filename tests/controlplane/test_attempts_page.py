"""The tab Attempts and the verbs in the header of a run."""

import json
import re
from datetime import UTC, datetime

import pytest
from django.test import Client

from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded, VerbEnded
from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import actions, queries
from flexmarl.store.control import attempts
from tests.support.controlplane import set_state
from tests.support.markup import markup
from tests.support.statements import at_most
from webui.views import verbs

pytestmark = pytest.mark.django_db


@pytest.fixture
def visitor(editor) -> Client:
    client = Client()
    client.force_login(editor)
    return client


def page(client, run) -> str:
    answer = client.get(f"/runs/{run.key}/config/attempts")
    assert answer.status_code == 200
    return markup(answer)


def two_attempts(run) -> None:
    changes = [
        (10.0, AttemptBegan(1, 1, Verb.START, "edith", 0)),
        (20.0, AttemptEnded(1, RunStatus.KILLED, RunReason.USER_REQUEST, "wrong seed", "otto", 5, {"speaker": 5})),
        (30.0, AttemptBegan(2, 3, Verb.RETRY, "edith", 5)),
    ]
    attempts.write_attempts(store_connection(), run.no, changes)
    set_state(run, status="running", step=7, progress=json.dumps({"attempt": 2, "max_steps": 400}))


def test_a_draft_has_no_attempt_and_says_when_the_first_begins(visitor, editor, make_run) -> None:
    text = page(visitor, make_run(editor))
    assert "No attempt yet" in text
    assert "No actions yet" in text


def test_each_attempt_says_its_steps_why_it_ended_and_who(visitor, editor, make_run) -> None:
    run = make_run(editor)
    two_attempts(run)
    text = page(visitor, run)
    first = re.search(r'<tr id="attempt-1">.*?</tr>', text, re.DOTALL).group(0)
    for words in ("1–5", "wrong seed", "ended by otto", "speaker v5", "Stopped by user", 'width="1.25"'):
        assert words in first, words
    second = re.search(r'<tr id="attempt-2">.*?</tr>', text, re.DOTALL).group(0)
    for words in ("6–7", "retried", "running", "not ended", 'x="1.25"'):
        assert words in second, words
    assert text.index('id="attempt-2"') < text.index('id="attempt-1"'), "newest first"
    assert 'attempts">attempt 2</a>' in text


def test_what_was_asked_is_listed_with_its_outcome(visitor, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    pause = actions.act(actor_of_user(editor), run, Verb.PAUSE, "lunch")
    actions.act(actor_of_user(editor), run, Verb.KILL)
    outcome = (5.0, VerbEnded(str(pause.id), False, RunStatus.KILLED, "superseded by kill"))
    attempts.write_outcomes(store_connection(), run.no, [outcome])
    text = page(visitor, run)
    for words in ("superseded by kill", "lunch", "waiting for the driver"):
        assert words in text


def test_the_page_reads_no_more_with_more_attempts(visitor, editor, make_run) -> None:
    run = make_run(editor)
    changes = [(float(no), AttemptBegan(no, 1, Verb.RETRY, "", 0)) for no in range(1, 60)]
    attempts.write_attempts(store_connection(), run.no, changes)
    page(visitor, run)
    with at_most(11):
        page(visitor, run)


def test_each_way_to_pause_says_what_it_costs(visitor, editor, make_run) -> None:
    text = page(visitor, make_run(editor, RunStatus.RUNNING, resources={"hold_s": 60}))
    menu = re.search(r'id="menu-pause".*?</span></button></span>', text, re.DOTALL).group(0)
    bodies = [json.loads(body.replace("&quot;", '"')) for body in re.findall(r'data-body="([^"]*)"', menu)]
    assert bodies == [{"mode": "freeze"}, {"mode": "freeze", "hold_s": 0}]
    assert "Pause after step 1" in menu
    assert "abandoned and replayed on resume" in menu
    assert "Devices stay leased for 1 m." in menu


@pytest.mark.parametrize("status", RunStatus)
def test_every_verb_is_there_until_a_run_ends_and_one_that_is_not_possible_says_why(editor, make_run, status) -> None:
    row = queries.run_detail(make_run(editor, status))
    offered = set(row["allowed_actions"]) if status in TERMINAL else set(Verb)
    for verb in verbs.verbs(row, may_act=True, may_edit=False):
        assert verb["enabled"] == (verb["verb"] in row["allowed_actions"])
        assert bool(verb["why"]) != verb["enabled"]
        assert "{" not in verb["text"]
    assert {verb["verb"] for verb in verbs.verbs(row, may_act=True, may_edit=False)} == offered
    assert verbs.verbs(row, may_act=False, may_edit=False) == [], "what nobody will ever let them do is not offered"


def test_a_viewer_sees_no_action_of_others(visitor, editor, person, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    other = Client()
    other.force_login(person(ProjectRole.VIEWER))
    text = page(other, run)
    assert "data-verb" not in text
    assert "menu-pause" not in text


def test_a_resting_run_says_what_it_keeps_and_until_when(editor, make_run) -> None:
    run = make_run(editor, RunStatus.PAUSED)
    now = datetime.fromtimestamp(1000.0, UTC)

    def said(reason: str = "user_request", **progress) -> str:
        set_state(run, reason=reason, progress=json.dumps(progress))
        return verbs.resting(queries.run_detail(queries.find_run(actor_of_user(editor), run.id)), now)["text"]

    assert said() == "Its devices stay leased until it is resumed or stopped."
    assert said(release_at=1060.0) == "Its devices are released in 1 m unless it is resumed."
    frozen = said("devices_given_back", frozen=True, cohort_groups=32, cohort_groups_settled=12)
    assert frozen.startswith("Frozen in step 1 with 12 of 32 groups settled")
    assert frozen.endswith("Its devices were released; resume requests new ones.")


def test_a_pending_verb_shows_the_request_and_never_the_wished_state(editor, make_run) -> None:
    run = make_run(editor, RunStatus.PAUSING)

    def said(**columns) -> str:
        set_state(run, **columns)
        return verbs.pending(queries.run_detail(queries.find_run(actor_of_user(editor), run.id)))

    assert said(progress="{}") == "Pausing at the end of step 1"
    assert said(progress='{"frozen": true}') == verbs.FREEZING
    assert said(status="resuming", progress="{}") == "Resuming at step 1"
    assert said(status="failed", pending_verb="retry", progress='{"attempt": 3}') == "Starting attempt 4"
    assert said(status="paused", pending_verb="") == ""
