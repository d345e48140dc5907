"""The page of serving keys, and where a run says how its agents are called."""

import pytest
from django.test import Client

from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.playground import keys
from flexmarl.controlplane.playground.models import ServingDay
from tests.support.controlplane import make_person
from tests.support.markup import markup

pytestmark = pytest.mark.django_db


def signed_in(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def boss():
    return make_person("boss", "project_admin", "alpha")


@pytest.fixture
def key(boss):
    made, _ = keys.create(actor_of_user(boss), "alpha", "shop window", 60, 1000)
    ServingDay.objects.create(
        key=made, day=made.created_at.date(), requests=7, prompt_tokens=100, completion_tokens=150
    )
    return made


def test_an_admin_of_the_project_gets_the_controls(boss, key) -> None:
    text = markup(signed_in(boss).get("/serving-keys"))
    for word in ("shop window", "250 tokens", "25 %", "7 requests", "Create serving key", "data-patch"):
        assert word in text, word


def test_an_editor_sees_the_list_and_who_changes_it(key) -> None:
    text = markup(signed_in(make_person("edith", "editor", "alpha")).get("/serving-keys"))
    assert "shop window" in text
    assert "boss can give it" in text
    for control in ("data-patch", "data-call", "Create serving key"):
        assert control not in text, control


def test_a_viewer_does_not_see_keys(key) -> None:
    answer = signed_in(make_person("vera", "viewer", "alpha")).get("/serving-keys")
    assert answer.status_code == 403
    two = make_person("tom", "viewer", "alpha")
    make_person("tim", "editor", "beta")
    from flexmarl.controlplane.accounts.models import Membership, Project

    Membership.objects.create(user=two, project=Project.objects.get(name="beta"), role="editor")
    text = markup(signed_in(two).get("/serving-keys?project=alpha"))
    assert "You cannot view the serving keys of alpha" in text
    assert "shop window" not in text


def test_the_list_is_filtered_in_the_url(boss, key) -> None:
    actor, client = actor_of_user(boss), signed_in(boss)
    other, _ = keys.create(actor, "alpha", "nightly", 60, 1000)
    keys.revoke(actor, "alpha", other.id)
    found = lambda query: [row["name"] for row in client.get(f"/serving-keys?{query}").context["rows"]]  # noqa: E731
    assert found("") == ["shop window"]
    assert found("state=revoked") == ["nightly"]
    assert found("state=") == ["nightly", "shop window"]
    assert found("state=&q=SHOP") == ["shop window"]
    assert found("q=none") == []
    assert found("model=some-run/solver") == ["shop window"], "a key of all models"


def test_without_keys_it_says_what_they_are_for(boss) -> None:
    assert "A serving key lets a program ask the trained agents of alpha" in markup(
        signed_in(boss).get("/serving-keys")
    )
