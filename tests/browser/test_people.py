"""Pages of people at a browser: accessible in both themes and three widths, and each verb from form to effect."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.visitor import WHOLE

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

LONG = "a-name-of-sixty-four-characters-which-is-the-longest-one-allowed"
PAGES = {
    "members": "/members?project=math-team",
    "members-choose": "/members?project=all",
    "service-accounts": "/service-accounts?project=math-team",
    "projects": "/projects",
    "users": "/users",
    "audit": "/audit?project=all",
    "audit-empty": "/audit?request_id=none-such",
    "tokens": "/settings/tokens?whose=all",
    "profile": "/settings/profile",
}
CALL = """async ([method, url, body]) => {
  const token = document.querySelector('input[name=csrfmiddlewaretoken]').value;
  const answer = await fetch(url, {method, headers: {'Content-Type': 'application/json', 'X-CSRFToken': token},
    body: JSON.stringify(body)});
  return [answer.status, await answer.json()];
}"""


def furnish(guest: Any) -> None:
    """Make a project with people, a service account and tokens; what is there already stays."""
    guest.goto("/projects")

    def call(method: str, url: str, body: dict[str, Any]) -> Any:
        status, answer = guest.page.evaluate(CALL, [method, f"/api/v1{url}", body])
        assert status in (200, 201, 409), answer
        return answer

    for name, text in (("math-team", "Hard arithmetic with three roles"), (LONG, "")):
        call("POST", "/projects", {"name": name, "description": text})
    for name, role in (("maria", "project_admin"), ("otto", "editor"), ("vera", "viewer"), (LONG, "operator")):
        membership = [{"project": "math-team", "role": role}]
        call("POST", "/users", {"username": name, "email": f"{name[:20]}@lab.example", "memberships": membership})
    for name in ("nightly-sweeps", "dashboards"):
        made = call("POST", "/projects/math-team/service-accounts", {"name": name, "role": "editor"})
        if "url" in made:
            body = {
                "name": f"{name} on the scheduler",
                "scopes": ["runs:read", "runs:write"],
                "networks": ["10.0.0.0/8"],
            }
            call("POST", made["url"].removeprefix("/api/v1") + "/tokens", body)


def test_pages_are_accessible_and_fit(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    furnish(guest)
    found: dict[str, Any] = {}
    for name, path in PAGES.items():
        guest.goto(path)
        found[name] = guest.seen_in(name, WHOLE)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert [text for text in guest.complaints if "409" not in text] == []


def test_a_member_is_added_changed_and_removed(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    furnish(guest)
    page = guest.page
    guest.goto("/members?project=math-team")
    page.locator("#m-name").fill("nobody-such")
    page.get_by_role("button", name="Add member").click()
    page.locator("[data-error='/username']", has_text="User nobody-such does not exist").wait_for()
    page.locator("#m-name").fill("newcomer")
    with page.expect_navigation():
        page.get_by_role("button", name="Add member").click()
    role = page.get_by_label("Role of newcomer")
    assert role.input_value() == "editor"
    role.select_option("operator")
    page.get_by_text("Role of newcomer changed").wait_for()
    role.select_option("viewer")
    page.get_by_text("Role of newcomer changed").nth(1).wait_for()
    guest.goto("/members?project=math-team")
    assert page.get_by_label("Role of newcomer").input_value() == "viewer"
    page.locator("tr", has_text="newcomer").get_by_role("button", name="Remove").click()
    with page.expect_navigation():
        page.get_by_role("button", name="Remove newcomer").click()
    assert page.get_by_label("Role of newcomer").count() == 0
    guest.goto("/audit?action=member.remove&project=math-team")
    assert "newcomer" in page.locator(".trail li").first.inner_text()


def test_a_service_token_is_shown_once_and_revoked(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    furnish(guest)
    page = guest.page
    guest.goto("/service-accounts?project=math-team")
    page.locator("section", has_text="dashboards").get_by_role("button", name="New token").click()
    dialog = page.locator("#new-token")
    dialog.get_by_label("Name").fill("grafana")
    dialog.get_by_label("Address ranges").fill("127.0.0.0/33")
    dialog.get_by_role("button", name="Create token").click()
    dialog.locator("[data-error='/networks']", has_text="not an address range").wait_for()
    dialog.get_by_label("Address ranges").fill("127.0.0.0/8")
    dialog.get_by_role("button", name="Create token").click()
    page.locator("#once").wait_for(state="visible")
    text = page.locator("#once-text").inner_text()
    answer = page.request.get(f"{seeded.url}/api/v1/me", headers={"Authorization": f"Bearer {text}"})
    assert answer.json()["username"] == "dashboards"
    guest.goto("/service-accounts?project=math-team")
    assert text.split(".")[1] not in page.content()
    page.locator("tr", has_text="grafana").get_by_role("button", name="Revoke").click()
    with page.expect_navigation():
        page.get_by_role("button", name="Revoke token").click()
    answer = page.request.get(f"{seeded.url}/api/v1/me", headers={"Authorization": f"Bearer {text}"})
    assert answer.status == 401


def test_a_new_user_signs_in_and_changes_the_password(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    page = guest.page
    guest.goto("/users")
    page.locator("#u-name").fill("first-timer")
    page.get_by_role("button", name="Create user").click()
    page.locator("#once").wait_for(state="visible")
    password = page.locator("#once-text").inner_text()
    other = visit(type(seeded)(seeded.url, "first-timer", password))
    other.sign_in()
    other.goto("/settings/profile")
    other.page.get_by_label("Current password").fill("not-this-one")
    other.page.get_by_label("New password").fill("a-better-one-of-mine")
    other.page.get_by_role("button", name="Change password").click()
    other.page.get_by_text("not your current password").wait_for()
    other.page.get_by_label("Current password").fill(password)
    other.page.get_by_role("button", name="Change password").click()
    other.page.get_by_text("other sessions have ended").wait_for()
    with other.page.expect_response("**/api/v1/me"):
        other.page.get_by_role("radio", name="Dense").click()
    other.page.wait_for_function("() => document.documentElement.dataset.density === 'dense'")
    other.goto("/settings/profile")
    assert other.page.evaluate("document.documentElement.dataset.density") == "dense"
    other.goto("/users")
    assert "Cluster admin" in other.page.locator("#main").inner_text()


def test_the_project_switcher_works_by_keyboard_and_on_phones(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    furnish(guest)
    page = guest.page
    guest.goto("/runs")
    page.locator("summary.proj").focus()
    page.keyboard.press("Enter")
    page.locator(".proj-box[open] a", has_text="math-team").focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.url.endswith("?project=math-team")
    assert page.locator("summary.proj").inner_text().strip() == "math-team"
    phone = visit(seeded, width=390)
    phone.sign_in()
    phone.goto("/runs")
    phone.page.get_by_text("More", exact=True).click()
    phone.page.locator(".more a", has_text="Members").click()
    phone.page.wait_for_url("**/members")
