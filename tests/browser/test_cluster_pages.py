"""Pools and nodes, the drain panel and the queue over seeded rows: what they show, and what pressing does."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]


def test_a_drain_is_shown_then_asked_for_then_taken_back(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/cluster")
    node = guest.page.locator("section#atlas")
    node.get_by_role("link", name="Drain atlas", exact=True).click()
    rail = guest.page.locator("#rail")
    assert rail.get_by_role("heading", level=2).inner_text() == "Drain atlas"
    assert rail.locator(".wc li").count() >= 2
    rail.get_by_role("link", name="Wait").click()
    guest.page.wait_for_url("**mode=wait")
    rail.get_by_label("Note for the change log").fill("New memory on Friday")
    rail.get_by_role("button", name="Drain when").click()
    guest.page.wait_for_url("**/cluster")
    node.get_by_role("button", name="Enable atlas", exact=True).wait_for()
    assert "New memory on Friday" in node.inner_text()
    assert "New memory on Friday" in guest.page.locator("#change-log").inner_text()
    node.get_by_role("button", name="Enable atlas", exact=True).click()
    guest.page.locator("#confirm").get_by_role("button", name="Enable atlas").click()
    node.get_by_role("link", name="Drain atlas", exact=True).wait_for()


def test_a_device_is_cordoned_and_enabled(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/cluster")
    card = guest.page.locator("[id='atlas.cpu3']")
    card.get_by_role("button", name="Cordon atlas.cpu3").click()
    guest.page.locator("#confirm").get_by_role("button", name="Cordon atlas.cpu3").click()
    card.get_by_text("Cordoned").wait_for()
    card.get_by_role("button", name="Enable atlas.cpu3").click()
    guest.page.locator("#confirm").get_by_role("button", name="Enable atlas.cpu3").click()
    card.get_by_role("button", name="Cordon atlas.cpu3").wait_for()


def test_a_pool_gets_rules_and_goes_again(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/cluster?edit=new")
    guest.page.get_by_label("Name", exact=True).fill("spare")
    guest.page.get_by_label("Description").fill("Old machines")
    guest.page.get_by_role("button", name="Create pool").click()
    guest.page.wait_for_url("**/cluster")
    guest.goto("/cluster?edit=spare")
    guest.page.get_by_label("default", exact=True).last.fill("2")
    guest.page.get_by_role("button", name="Set quota of default").click()
    guest.page.locator("#pool-spare", has_text="default holds 0 of its 2").wait_for()
    guest.page.get_by_role("button", name="Delete pool").click()
    guest.page.locator("#confirm").get_by_role("button", name="Delete spare").click()
    guest.page.wait_for_url("**/cluster")
    assert guest.page.locator("#pool-spare").count() == 0


def test_members_read_and_do_not_rule(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in("newcomer")
    guest.goto("/cluster")
    assert guest.page.locator("[data-rule]").count() == 0
    assert "cordoning and draining need the Cluster admin role" in guest.page.locator("#read-only").inner_text()
    guest.goto("/cluster?drain=atlas")
    assert "You can read this node, not drain it." in guest.page.locator("#rail").inner_text()
    assert guest.page.locator("#rail .btn.pri").count() == 0
