"""Pages of people: who sees which, what they show, and what they say to those who may not."""

import re

import pytest
from django.test import Client

from flexmarl.controlplane.accounts import actions
from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.accounts.queries import actor_of_user
from tests.support.controlplane import make_person
from tests.support.markup import markup

pytestmark = pytest.mark.django_db


def signed_in(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def team():
    """Return (admin, editor, cluster admin) of the project alpha, which has a service account with a token."""
    boss, edith, ada = (
        make_person("boss", "project_admin", "alpha"),
        make_person("edith", "editor", "alpha"),
        make_person("ada", "cluster_admin"),
    )
    actor = actor_of_user(boss)
    robot = actions.create_service_account(actor, "alpha", "nightly", "editor")
    actions.create_token(actor, "sweeps", ["runs:read"], service_account=("alpha", robot.id))
    return boss, edith, ada


PAGES = ("/members", "/service-accounts", "/projects", "/users", "/audit", "/settings/tokens", "/settings/profile")


@pytest.mark.parametrize("path", PAGES)
def test_a_cluster_admin_sees_every_page(team, path) -> None:
    answer = signed_in(team[2]).get(f"{path}?project=alpha")
    assert answer.status_code == 200
    assert "unsafe-inline" not in answer["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("path", "status"), [(p, 403 if p in {"/projects", "/users", "/audit"} else 200) for p in PAGES]
)
def test_an_editor_sees_what_concerns_them(team, path, status) -> None:
    assert signed_in(team[1]).get(path).status_code == status


def test_only_project_admins_get_the_controls(team) -> None:
    text = markup(signed_in(team[0]).get("/members"))
    assert text.count("data-patch") == 2
    text = markup(signed_in(team[1]).get("/members"))
    assert "data-patch" not in text
    assert "Add member" not in text
    assert "boss can give it" in text


def test_a_refusal_names_the_roles_and_who_gives_them(team) -> None:
    text = markup(signed_in(team[1]).get("/audit"))
    for word in ("Project admin", "Auditor", "Granted by admins of alpha", "boss", "ada"):
        assert word in text, word


def test_who_is_in_no_project_is_told_so_and_led_only_to_what_opens(person) -> None:
    browser = signed_in(person("member", "nora"))
    answer = browser.get("/")
    text = markup(answer)
    assert answer.status_code == 403
    assert "You are not a member of a project yet" in text
    main = text.split("<main", 1)[1].split("</main", 1)[0]
    doors = re.findall(r'class="btn[^"]*" href="([^"]+)"', main)
    assert doors == ["/queue", "/cluster"]
    assert [browser.get(door).status_code for door in doors] == [200, 200]


def test_service_accounts_are_for_project_admins(team) -> None:
    assert "nightly" in markup(signed_in(team[0]).get("/service-accounts"))
    text = markup(signed_in(team[1]).get("/service-accounts"))
    assert "nightly" not in text
    assert "boss can give it" in text


def test_without_a_choice_a_page_of_one_project_asks_for_it(team) -> None:
    Project.objects.create(name="beta")
    text = markup(signed_in(team[2]).get("/members"))
    assert "/members?project=alpha" in text
    assert "/members?project=beta" in text


def test_users_are_filtered_in_the_url(team) -> None:
    client = signed_in(team[2])
    rows = client.get("/users?role=cluster_admin").context["rows"]
    assert [row["username"] for row in rows] == ["ada"]
    assert [row["username"] for row in client.get("/users?q=edi").context["rows"]] == ["edith"]
    assert "nightly" not in markup(client.get("/users")), "service accounts are not people"


def test_the_trail_shows_before_and_after_and_filters_by_request(team) -> None:
    _, edith, ada = team
    admin = actor_of_user(ada)
    actions.update_user(admin, edith.id, {"role": "auditor"})
    client = signed_in(ada)
    [row] = [row for row in client.get("/audit?action=user.update").context["rows"] if row["target_name"] == "edith"]
    assert {c["name"]: (c["before"], c["after"]) for c in row["changes"]} == {"role": ("member", "auditor")}
    answer = client.get("/audit?request_id=none-such")
    assert answer.context["rows"] == []
    assert "Clear filters" in markup(answer)


def test_a_project_admin_sees_the_trail_of_their_projects_only(team) -> None:
    make_person("other", "project_admin", "beta")
    actions.create_token(actor_of_user(team[2]), "of the admin")
    shown = {row["project"] for row in signed_in(team[0]).get("/audit").context["rows"]}
    assert shown == {"alpha"}


def test_pages_of_the_trail_follow_each_other(team) -> None:
    actor = actor_of_user(team[2])
    for index in range(60):
        actions.create_token(actor, f"t{index}")
    client, seen, url = signed_in(team[2]), [], "/audit?action=token.create"
    while url:
        answer = client.get(url)
        seen += [row["id"] for row in answer.context["rows"]]
        url = answer.context["older"]
    assert len(seen) == len(set(seen)) == 61


def test_query_counts_do_not_grow_with_rows(team, django_assert_max_num_queries) -> None:
    boss, _, ada = team
    for index in range(20):
        make_person(f"p{index}", "viewer", "alpha")
        actions.create_service_account(actor_of_user(boss), "alpha", f"robot{index}", "viewer")
    client = signed_in(ada)
    for path in PAGES:
        with django_assert_max_num_queries(14):
            assert client.get(f"{path}?project=alpha").status_code == 200
