"""The playground of a run: what the page knows of an agent, and what it says when there is nobody to talk to."""

import re

import pytest
from django.test import Client

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.trajectories import decoding
from flexmarl.language.chat_format import ChatFormat
from tests.support.markup import markup
from tests.support.played import play
from tests.support.statements import at_most
from tests.support.store_story import digest

pytestmark = pytest.mark.django_db
SHARED = {"speaker": {"policy": "solver"}, "listener": {"policy": "solver"}}


@pytest.fixture
def run(editor, make_run):
    made = make_run(editor, RunStatus.RUNNING, agents=SHARED)
    play(made)
    store_connection().execute("UPDATE store.sample SET role = 'speaker' WHERE run_id = %s", [made.no])
    return made


def text_of(browser: Client, run: Run, query: str = "") -> str:
    answer = browser.get(f"/runs/{run.key}/trajectories/playground{query}")
    assert answer.status_code == 200
    return markup(answer)


def test_the_page_knows_words_observations_and_how_the_agent_was_trained(browser, run) -> None:
    text = text_of(browser, run)
    assert re.findall(r'data-word="(\w+)"', text) == ["red", "blue", "round", "square", "big", "small", "yes"]
    assert f'data-model="{run.key}/speaker" data-version="1"' in text
    assert 'data-observation="red' in text
    assert 'data-allowed="square big small yes"' in text
    assert "It replied: square big small (v0)" in text
    assert "No engine of the run serves v1" in text
    assert f'model="{run.key}/speaker@1"' in text
    conn = store_connection()
    conn.execute(
        "INSERT INTO store.engine_policy (lease_id, incarnation, policy, version, digest) "
        "SELECT id, incarnation, 'solver', 1, %s FROM store.lease WHERE run_id = %s AND use = 'engine'",
        [digest(1), run.no],
    )
    assert "The run's own engine answers for v1" in text_of(browser, run)


def test_another_agent_and_an_older_version_are_chosen_by_the_address(browser, run) -> None:
    text = text_of(browser, run, "?agent=listener&version=0")
    assert f'data-model="{run.key}/listener" data-version="0"' in text
    assert "data-observation" not in text, "nothing of the listener was recorded"
    assert "has no version 7; the newest is 1" in text_of(browser, run, "?version=7")


def test_who_cannot_be_talked_to_is_named_with_the_reason(browser, run, editor, make_run) -> None:
    assert "has no version yet" in text_of(browser, make_run(editor, RunStatus.QUEUED))
    Run.objects.filter(pk=run.pk).update(archived_at="2026-01-01T00:00:00Z")
    assert "is archived. Restore it" in text_of(browser, run)


def test_who_may_not_talk_is_told_what_is_missing(run, person) -> None:
    viewer = Client()
    viewer.force_login(person(ProjectRole.VIEWER, "vera"))
    text = text_of(viewer, run)
    assert "models:use" in text
    assert "<form" not in text.split('id="pl-title"')[1].split("</section>")[0]


def test_what_agents_said_is_never_markup(browser, run) -> None:
    store_connection().execute(
        "UPDATE store.tokenizer SET body = replace(body, '\"red\"', '\"<i>red</i>\"') WHERE run_id = %s", [run.no]
    )
    text = text_of(browser, run)
    assert "&lt;i&gt;red&lt;/i&gt;" in text
    assert "<i>red</i>" not in text


def test_the_page_reads_little(browser, run) -> None:
    text_of(browser, run)
    with at_most(40):
        text_of(browser, run)


def test_an_agent_with_a_chat_template_is_sent_a_message_or_its_whole_prompt(browser, run) -> None:
    assert 'name="as"' not in text_of(browser, run)
    chat = ChatFormat(template="{% for m in messages %}{{ m.content }}{% endfor %}", stop=(5,)).dump()
    store_connection().execute("UPDATE store.tokenizer SET chat = %s WHERE run_id = %s", [chat, run.no])
    decoding._chats.cache_clear()
    text = text_of(browser, run)
    assert '<option value="message">a message of the user</option>' in text
    assert "client.chat.completions.create(" in text
