"""The project that pages are narrowed to: chosen in the URL, remembered for the session, never outside the caller's."""

import pytest
from django.test import Client

from flexmarl.controlplane.accounts.models import Membership, Project
from tests.support.controlplane import make_person
from tests.support.markup import markup

pytestmark = pytest.mark.django_db


@pytest.fixture
def two_projects(client: Client) -> Client:
    """Return the client of a member of alpha and beta; gamma exists too."""
    user = make_person("edith", "editor", "alpha")
    Membership.objects.create(user=user, project=Project.objects.create(name="beta"), role="viewer")
    Project.objects.create(name="gamma")
    client.force_login(user)
    return client


def chosen(client: Client, query: str = "") -> str:
    return client.get(f"/runs{query}").context["project"]


def test_a_choice_is_remembered_and_lifted(two_projects: Client) -> None:
    assert chosen(two_projects) == ""
    assert chosen(two_projects, "?project=beta") == "beta"
    assert chosen(two_projects) == "beta"
    assert chosen(two_projects, "?project=all") == ""
    assert chosen(two_projects) == ""


def test_the_switcher_lists_the_callers_projects_only(two_projects: Client) -> None:
    text = markup(two_projects.get("/runs"))
    assert "?project=alpha" in text
    assert "?project=gamma" not in text


def test_who_left_a_project_is_not_kept_in_it(two_projects: Client) -> None:
    chosen(two_projects, "?project=beta")
    Project.objects.create(name="delta")
    Membership.objects.filter(project__name="beta").delete()
    assert chosen(two_projects) == "alpha", "one project is left, so that is the place"


def test_an_admin_may_choose_any_project(client: Client) -> None:
    client.force_login(make_person("ada", "cluster_admin"))
    Project.objects.create(name="zeta")
    assert chosen(client, "?project=zeta") == "zeta"
