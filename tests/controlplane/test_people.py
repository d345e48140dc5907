"""Projects, members, people, service accounts, limited tokens, tickets over REST, and what each leaves in the trail."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from flexmarl.controlplane.accounts import actions
from flexmarl.controlplane.accounts.callers import actor_now
from flexmarl.controlplane.accounts.choices import ProjectRole, Role
from flexmarl.controlplane.accounts.models import ApiToken, Membership, Project, SocketTicket, User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.scopes import Scope
from tests.support.controlplane import PASSWORD, SPEC, key, make_person

pytestmark = pytest.mark.django_db
API = "/api/v1"


def bearer(text: str, **extra: str) -> APIClient:
    client = APIClient(**extra)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client


@pytest.fixture
def boss(person, client_of) -> APIClient:
    """Return the client of the one project admin of alpha."""
    return client_of(person(ProjectRole.ADMIN, "boss", "alpha"))


def last(action: str) -> AuditEntry:
    return AuditEntry.objects.filter(action=action).order_by("-id")[0]


# projects and members


def test_a_project_is_made_described_and_deleted_when_empty(admin_api) -> None:
    made = admin_api.post(f"{API}/projects", {"name": "math-team", "description": "d"})
    assert (made.status_code, made["Location"], made["ETag"]) == (201, f"{API}/projects/math-team", 'W/"1"')
    url = made.json()["url"]
    assert admin_api.patch(url, {"description": "e"}, headers={"If-Match": 'W/"7"'}).status_code == 412
    assert admin_api.patch(url, {"description": "e"}, headers={"If-Match": 'W/"1"'}).json()["version"] == 2
    assert (last("project.update").before, last("project.update").after) == ({"description": "d"}, {"description": "e"})
    assert last("project.update").project == "math-team"
    assert admin_api.delete(url).status_code == 204
    assert admin_api.get(url).status_code == 404
    assert AuditEntry.objects.filter(project="math-team").count() == 3, "the trail outlives the project"


@pytest.mark.parametrize("name", ["all", "with space", "a/b", "", "x" * 65])
def test_names_of_projects_are_addresses(admin_api, name) -> None:
    answer = admin_api.post(f"{API}/projects", {"name": name})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/name")


def test_a_project_with_something_in_it_stays(admin_api, person, client_of) -> None:
    owner = client_of(person(ProjectRole.EDITOR, "owner", "alpha"))
    body = {"spec": SPEC, "project": "alpha"}
    assert owner.post(f"{API}/runs", body, headers={"Idempotency-Key": key()}).status_code == 201
    answer = admin_api.delete(f"{API}/projects/alpha")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "runs" in answer.json()["detail"]
    assert admin_api.delete(f"{API}/projects/default").status_code == 409
    assert Project.objects.filter(name__in=["alpha", "default"]).count() == 2


def test_members_come_change_and_go(boss, person, client_of) -> None:
    nora = client_of(person(Role.MEMBER, "nora"))
    assert nora.get(f"{API}/projects/alpha/members").status_code == 404
    url = boss.post(f"{API}/projects/alpha/members", {"username": "nora", "role": "viewer"}).json()["url"]
    assert nora.get(f"{API}/projects/alpha/members").json()["results"][1]["username"] == "nora"
    assert boss.post(f"{API}/projects/alpha/members", {"username": "nora"}).status_code == 409
    assert boss.patch(url, {"role": "operator"}, headers={"If-Match": 'W/"2"'}).status_code == 412
    assert boss.patch(url, {"role": "operator"}, headers={"If-Match": 'W/"1"'}).json()["role"] == "operator"
    row = last("member.update")
    assert (row.before, row.after, row.project) == ({"role": "viewer"}, {"role": "operator"}, "alpha")
    assert nora.get(f"{API}/me").json()["projects"][0]["role"] == "operator"
    assert boss.delete(url).status_code == 204
    assert nora.get(f"{API}/projects/alpha").status_code == 404


def test_an_unknown_person_is_named_in_the_refusal(boss) -> None:
    answer = boss.post(f"{API}/projects/alpha/members", {"username": "nobody"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/username")


def test_project_admins_cannot_leave_a_project_without_one(boss, admin_api) -> None:
    mine = f"{API}/projects/alpha/members/{User.objects.get(username='boss').id}"
    for answer in (boss.delete(mine), boss.patch(mine, {"role": "viewer"})):
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    make_person("second", ProjectRole.ADMIN, "alpha")
    assert boss.patch(mine, {"role": "viewer"}).status_code == 200
    second = f"{API}/projects/alpha/members/{User.objects.get(username='second').id}"
    assert admin_api.delete(second).status_code == 204, "who can repair it may"


def test_an_admin_that_cannot_sign_in_does_not_count(boss) -> None:
    User.objects.filter(pk=make_person("gone", ProjectRole.ADMIN, "alpha").pk).update(is_active=False)
    assert boss.delete(f"{API}/projects/alpha/members/{User.objects.get(username='boss').id}").status_code == 409


# people


def test_a_person_is_made_with_roles_and_a_password_shown_once(admin_api) -> None:
    Project.objects.create(name="alpha")
    body = {"username": "nora", "memberships": [{"project": "alpha", "role": "editor"}]}
    made = admin_api.post(f"{API}/users", body, headers={"Idempotency-Key": key()})
    password = made.json()["password"]
    assert Client().login(username="nora", password=password)
    assert "password" not in admin_api.get(made.json()["url"]).json()
    assert User.objects.get(username="nora").roles == {"alpha": "editor"}
    assert last("user.create").after == {"role": "member", "projects": {"alpha": "editor"}}
    bad = admin_api.post(f"{API}/users", {"username": "x", "memberships": [{"project": "no", "role": "editor"}]})
    assert bad.json()["errors"][0]["pointer"] == "/memberships/0/project"
    assert not User.objects.filter(username="x").exists()


def test_a_person_is_switched_off_and_demoted_at_once(admin_api, person, client_of) -> None:
    other = person(Role.CLUSTER_ADMIN, "other")
    User.objects.filter(pk=other.pk).update(is_superuser=True)
    client, url = client_of(other), f"{API}/users/{other.id}"
    assert client.get(f"{API}/users").status_code == 200
    assert admin_api.patch(url, {"role": "member"}, headers={"If-Match": 'W/"9"'}).status_code == 412
    assert admin_api.patch(url, {"role": "member"}).status_code == 200
    assert client.get(f"{API}/users").status_code == 403
    found = User.objects.get(pk=other.pk)
    assert (found.is_superuser, found.is_staff) == (False, False)
    assert admin_api.patch(url, {"is_active": False}).status_code == 200
    assert client.get(f"{API}/me").status_code == 401
    assert last("user.update").before == {"is_active": True}


def test_the_last_cluster_admin_stays(admin_api) -> None:
    url = f"{API}/users/{User.objects.get(username='ada').id}"
    for changes in ({"role": "member"}, {"is_active": False}):
        assert admin_api.patch(url, changes).status_code == 409
    assert User.objects.get(username="ada").role == Role.CLUSTER_ADMIN


def test_a_reset_password_ends_sessions(admin_api, person) -> None:
    person(ProjectRole.EDITOR, "edith")
    browser = Client()
    assert browser.login(username="edith", password=PASSWORD)
    answer = admin_api.post(f"{API}/users/{User.objects.get(username='edith').id}/actions/reset-password")
    assert not Client().login(username="edith", password=PASSWORD)
    assert Client().login(username="edith", password=answer.json()["password"])
    assert browser.get(f"{API}/me").status_code == 401


def test_a_password_is_changed_by_its_owner_at_a_browser(person, client_of) -> None:
    edith = person(ProjectRole.EDITOR, "edith")
    body = {"current": PASSWORD, "new": "another-good-one-77"}
    assert client_of(edith).post(f"{API}/me/password", body).status_code == 403, "a token may not"
    browser, second = Client(), Client()
    for one in (browser, second):
        assert one.login(username="edith", password=PASSWORD)
    wrong = browser.post(f"{API}/me/password", {**body, "current": "wrong"}, "application/json")
    assert wrong.json()["errors"][0]["pointer"] == "/current"
    weak = browser.post(f"{API}/me/password", {**body, "new": "password"}, "application/json")
    assert weak.json()["errors"][0]["pointer"] == "/new"
    assert browser.post(f"{API}/me/password", body, "application/json").status_code == 204
    assert browser.get(f"{API}/me").status_code == 200, "this session goes on"
    assert second.get(f"{API}/me").status_code == 401, "others end"


def test_guessing_a_password_through_the_form_is_limited(person, settings) -> None:
    settings.API_RATES = {**settings.API_RATES, "secret": 2}
    person(ProjectRole.EDITOR, "edith")
    browser = Client()
    assert browser.login(username="edith", password=PASSWORD)
    body = {"current": "guess", "new": "another-good-one-77"}
    codes = [browser.post(f"{API}/me/password", body, "application/json").status_code for _ in range(3)]
    assert codes == [400, 400, 429]
    assert browser.get(f"{API}/me").status_code == 200, "other requests are counted apart"
    for _ in range(2):
        token = bearer(browser.post(f"{API}/tokens", {"name": "more"}, "application/json").json()["token"])
        assert token.post(f"{API}/me/password", body).status_code == 429, "more tokens are no more guesses"


def test_preferences_and_roles_are_in_me(api) -> None:
    changed = api.patch(f"{API}/me", {"density": "dense", "letter_keys": False}).json()
    assert (changed["density"], changed["letter_keys"], changed["role"]) == ("dense", False, "member")
    assert last("user.preferences").before == {"density": "comfortable", "letter_keys": True}
    assert api.patch(f"{API}/me", {"density": "tiny"}).status_code == 400


# service accounts


@pytest.fixture
def robot(boss) -> dict:
    """Return the row of a service account of alpha, an editor."""
    made = boss.post(f"{API}/projects/alpha/service-accounts", {"name": "nightly"})
    assert made.status_code == 201, made.content
    return made.json()


def token_of(boss: APIClient, robot: dict, **body: object) -> str:
    return boss.post(f"{robot['url']}/tokens", {"name": "t", **body}).json()["token"]


def test_a_service_account_acts_in_its_project_and_cannot_sign_in(boss, robot) -> None:
    client = bearer(token_of(boss, robot))
    made = client.post(f"{API}/runs", {"spec": SPEC, "project": "alpha"}, headers={"Idempotency-Key": key()})
    assert (made.status_code, made.json()["owner"]) == (201, "nightly")
    body = {"spec": SPEC, "project": "default"}
    assert client.post(f"{API}/runs", body, headers={"Idempotency-Key": key()}).status_code == 403
    assert client.post(f"{API}/tokens", {"name": "more"}).status_code == 403
    assert client.get(f"{API}/me").json()["kind"] == "service"
    account = User.objects.get(username="nightly")
    account.set_password(PASSWORD)
    account.save()
    assert not Client().login(username="nightly", password=PASSWORD), "even with a password"
    browser = Client()
    browser.force_login(account)
    assert browser.get(f"{API}/me").status_code == 401, "not with a session either"


def test_a_service_account_is_no_member_and_no_person(boss, robot, admin_api) -> None:
    assert [row["username"] for row in boss.get(f"{API}/projects/alpha/members").json()["results"]] == ["boss"]
    assert boss.delete(f"{API}/projects/alpha/members/{robot['id']}").status_code == 404
    assert admin_api.get(f"{API}/users/{robot['id']}").status_code == 404
    answer = admin_api.post(f"{API}/projects/default/members", {"username": "nightly", "role": "viewer"})
    assert answer.status_code == 400
    assert boss.patch(robot["url"], {"role": "project_admin"}).status_code == 400


def test_switching_it_off_revokes_its_tokens_for_good(boss, robot) -> None:
    client = bearer(token_of(boss, robot))
    assert client.get(f"{API}/runs").status_code == 200
    assert boss.patch(robot["url"], {"is_active": False}).json()["is_active"] is False
    assert client.get(f"{API}/runs").status_code == 401
    assert boss.post(f"{robot['url']}/tokens", {"name": "t"}).status_code == 409
    assert boss.patch(robot["url"], {"is_active": True}).status_code == 200
    assert client.get(f"{API}/runs").status_code == 401, "revoked stays revoked"
    assert last("service_account.update").project == "alpha"


def test_admins_of_other_projects_do_not_see_it(robot, person, client_of) -> None:
    other = client_of(person(ProjectRole.ADMIN, "other", "beta"))
    assert other.get(robot["url"]).status_code == 404
    assert other.post(f"{robot['url']}/tokens", {"name": "t"}).status_code == 404
    moved = robot["url"].replace("/alpha/", "/beta/")
    assert other.get(moved).status_code == 404
    assert other.post(f"{moved}/tokens", {"name": "t"}).status_code == 404


def test_tokens_of_service_accounts_are_kept_by_project_admins(boss, robot, person, client_of) -> None:
    token_of(boss, robot)
    token = ApiToken.objects.get(owner__username="nightly")
    assert token.created_by.username == "boss"
    assert client_of(person(ProjectRole.ADMIN, "other", "beta")).delete(f"{API}/tokens/{token.id}").status_code == 404
    assert [row["owner"] for row in boss.get(f"{API}/tokens?whose=all&owner=nightly").json()["results"]] == ["nightly"]
    assert boss.delete(f"{API}/tokens/{token.id}").status_code == 204


# tokens


def test_a_token_limited_to_a_project_does_nothing_elsewhere(person) -> None:
    edith = person(ProjectRole.EDITOR, "edith", "alpha")
    Membership.objects.create(user=edith, project=Project.objects.get(name="default"), role=ProjectRole.EDITOR)
    _, text = actions.create_token(actor_of_user(edith), "t", projects=["alpha"])
    client = bearer(text)
    assert [row["name"] for row in client.get(f"{API}/me").json()["projects"]] == ["alpha"]
    for project, expected in (("alpha", 201), ("default", 403)):
        body = {"spec": SPEC, "project": project}
        assert client.post(f"{API}/runs", body, headers={"Idempotency-Key": key()}).status_code == expected


def test_an_admins_token_limited_to_a_project_loses_the_installation(person) -> None:
    Project.objects.create(name="alpha")
    _, text = actions.create_token(actor_of_user(person(Role.CLUSTER_ADMIN)), "t", projects=["alpha"])
    me = bearer(text).get(f"{API}/me").json()
    assert me["everywhere"] == ["cluster:read", "tokens:write"]
    assert "projects:admin" in me["projects"][0]["scopes"]
    assert bearer(text).get(f"{API}/users").status_code == 403


def test_a_token_made_with_a_token_gets_no_further(person, client_of) -> None:
    edith = person(ProjectRole.EDITOR, "edith", "alpha")
    Membership.objects.create(user=edith, project=Project.objects.get(name="default"), role=ProjectRole.EDITOR)
    first, text = actions.create_token(
        actor_of_user(edith), "t", ["tokens:write", "runs:read"], 2, projects=["alpha"], networks=["127.0.0.0/8"]
    )
    client = bearer(text)
    made = client.post(f"{API}/tokens", {"name": "child", "expires_in_days": 300}).json()
    assert (made["projects"], made["networks"]) == (["alpha"], ["127.0.0.0/8"])
    assert set(made["scopes"]) == {"tokens:write", "runs:read"}
    assert ApiToken.objects.get(pk=made["id"]).expires_at <= first.expires_at
    wider = client.post(f"{API}/tokens", {"name": "x", "projects": ["default"]})
    assert (wider.status_code, wider.json()["errors"][0]["pointer"]) == (400, "/projects/0")
    wider = client.post(f"{API}/tokens", {"name": "x", "networks": ["0.0.0.0/0"]})
    assert (wider.status_code, wider.json()["errors"][0]["pointer"]) == (400, "/networks/0")
    assert client.post(f"{API}/tokens", {"name": "x", "networks": ["127.1.0.0/16"]}).status_code == 201


@pytest.mark.parametrize(
    ("networks", "address", "expected"),
    [
        (["10.0.0.0/8"], "10.2.3.4", 200),
        (["10.0.0.0/8"], "11.2.3.4", 401),
        (["10.0.0.0/8", "2001:db8::/32"], "2001:db8::7", 200),
        (["10.0.0.0/8"], "2001:db8::7", 401),
        (["10.0.0.0/8"], "", 401),
        ([], "11.2.3.4", 200),
    ],
)
def test_a_token_works_from_its_networks_only(editor, networks, address, expected) -> None:
    _, text = actions.create_token(actor_of_user(editor), "t", networks=networks)
    assert bearer(text, REMOTE_ADDR=address).get(f"{API}/me").status_code == expected


def test_an_address_cannot_be_claimed_in_a_header(editor) -> None:
    _, text = actions.create_token(actor_of_user(editor), "t", networks=["10.0.0.0/8"])
    assert bearer(text).get(f"{API}/me", headers={"X-Forwarded-For": "10.0.0.1"}).status_code == 401


@pytest.mark.parametrize("network", ["10.0.0.1/8", "x", "10.0.0.0/33", "300.0.0.0/8"])
def test_a_wrong_range_is_refused_with_an_example(api, network) -> None:
    answer = api.post(f"{API}/tokens", {"name": "t", "networks": [network]})
    assert answer.json()["errors"][0]["pointer"] == "/networks/0"
    assert "10.0.0.0/8" in answer.json()["errors"][0]["hint"]


def test_tokens_are_renamed_and_filtered(api) -> None:
    made = [
        api.post(f"{API}/tokens", {"name": name, "projects": ["default"]}).json() for name in ("one", "two", "three")
    ]
    assert api.patch(made[0]["url"], {"name": "uno"}).json()["name"] == "uno"
    assert last("token.update").before == {"name": "one"}
    api.delete(made[1]["url"])
    ApiToken.objects.filter(pk=made[2]["id"]).update(expires_at=timezone.now() - timedelta(days=1))

    def names(query: str) -> list[str]:
        return [row["name"] for row in api.get(f"{API}/tokens?{query}").json()["results"]]

    assert names("state=revoked") == ["two"]
    assert names("state=expired") == ["three"]
    assert names("name__ic=UN") == ["uno"]
    assert names("project=default") == ["three", "two", "uno"]
    assert api.get(f"{API}/tokens?whose=everybody").status_code == 400


def test_the_command_makes_a_limited_token(editor, capsys) -> None:
    from django.core.management import call_command

    options = ["--scopes", "runs:read", "--projects", "default", "--networks", "127.0.0.0/8"]
    call_command("create_token", "--user", "edith", "--name", "cron", *options)
    me = bearer(capsys.readouterr().out.strip()).get(f"{API}/me").json()
    assert (me["scopes"], me["projects"][0]["name"]) == (["runs:read"], "default")


# tickets


def test_a_ticket_opens_one_socket_for_a_minute(editor, client_of) -> None:
    text = client_of(editor).post(f"{API}/ws-tickets").json()["ticket"]
    assert text not in str(SocketTicket.objects.values())
    caller = actions.take_ticket(text, "127.0.0.1")
    assert (caller.user_id, ApiToken.objects.get(pk=caller.token_id).owner) == (editor.id, editor)
    assert actions.take_ticket(text, "127.0.0.1") is None, "it is used up"
    late = client_of(editor).post(f"{API}/ws-tickets").json()["ticket"]
    SocketTicket.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert actions.take_ticket(late, "127.0.0.1") is None
    assert actions.take_ticket("guess", "127.0.0.1") is None


def test_a_ticket_is_as_narrow_as_the_token_it_was_asked_with(person, client_of) -> None:
    admin = person(Role.CLUSTER_ADMIN)
    client = client_of(admin, ["cluster:read"])
    caller = actions.take_ticket(client.post(f"{API}/ws-tickets").json()["ticket"], "127.0.0.1")
    assert actor_now(caller).scopes == {Scope.CLUSTER_READ}
    ApiToken.objects.update(revoked_at=timezone.now())
    assert actor_now(caller).scopes == frozenset(), "and ends with it"


def test_a_ticket_works_where_its_token_does_and_nowhere_else(editor, client_of) -> None:
    near = client_of(editor)
    ApiToken.objects.filter(owner=editor).update(networks=["127.0.0.0/8"])
    for address, works in (("127.0.0.1", True), ("203.0.113.9", False), ("", False)):
        text = near.post(f"{API}/ws-tickets").json()["ticket"]
        assert (actions.take_ticket(text, address) is not None) is works, address
        assert actions.take_ticket(text, "127.0.0.1") is None, "used up, wherever it was tried"


def test_nobody_gets_no_ticket() -> None:
    assert APIClient().post(f"{API}/ws-tickets").status_code == 401
