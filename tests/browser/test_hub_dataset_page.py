"""A dataset of a hub, from its name to its page, only in the browser, where an operator has configured a hub."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.hub_datasets import HUB, fetch_as_node, grade_school
from tests.support.hub_server import COMMIT, HubServer, hub_server

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]
SETTINGS = {"FLEXMARL_HUB": HUB}
"""What the web process of this module has beside the settings of a new installation."""


def test_a_dataset_of_a_hub_is_looked_up_fetched_and_saved_by_keyboard_on_a_phone(
    seeded: Any, visit: Callable[..., Any], tmp_path: Path
) -> None:
    guest = visit(seeded, theme="dark", width=390)
    guest.sign_in()
    page = guest.page
    guest.goto("/datasets/import?source=hub")
    busy, failed = page.locator("[data-hub=busy]"), page.locator("[data-hub=failed]")
    page.get_by_label("Repository").fill("a/b/c")
    page.get_by_label("Repository").press("Enter")
    page.locator("[data-error='/repository']", has_text="a/b/c").wait_for()
    page.get_by_label("Repository").fill("us/school")
    page.get_by_label("Revision").fill("v9")
    page.get_by_label("Revision").press("Enter")
    busy.filter(has_text="Waits for a node").wait_for()
    with (
        psycopg.connect(seeded.environment["DATABASE_URL"], autocommit=True) as conn,
        hub_server(HubServer({"us/school": grade_school(tmp_path / "school")})) as hub,
    ):
        fetch_as_node(conn, hub.address, "", tmp_path / "one")
        failed.filter(has_text="us/school has no revision v9").wait_for()
        assert "Next: Name an existing branch, tag or commit." in failed.text_content()
        page.get_by_label("Revision").fill("main")
        page.get_by_role("button", name="Look up").press("Enter")
        busy.filter(has_text="Waits for a node").wait_for()
        busy.get_by_role("button", name="Cancel").press("Enter")
        failed.filter(has_text="Cancelled").wait_for()
        page.get_by_role("button", name="Look up").press("Enter")
        busy.filter(has_text="Waits for a node").wait_for()
        fetch_as_node(conn, hub.address, "", tmp_path / "two")
        page.locator("[data-commit]", has_text=f"Commit {COMMIT[:12]}, licence mit.").wait_for()
        page.get_by_label("Configuration").select_option("pictures")
        page.locator("[data-refused]", has_text="pictures/one.png is none of").wait_for()
        assert page.get_by_role("button", name="Fetch").is_disabled()
        page.get_by_label("Configuration").select_option("main")
        assert page.get_by_label(re.compile("^train")).is_checked()
        page.get_by_role("button", name="Fetch").press("Enter")
        busy.filter(has_text="Waits for a node").wait_for()
        fetch_as_node(conn, hub.address, "", tmp_path / "three")
        page.locator("#counts", has_text="20 rows to train on, 5 held out").wait_for()
    assert page.get_by_role("checkbox", name="test", exact=True).is_checked()
    guest.keep("dataset-of-a-hub")
    page.get_by_label("Name").fill("school")
    page.get_by_role("button", name="Import", exact=True).press("Enter")
    page.get_by_role("heading", name="school v1").wait_for()
    page.locator("#dataset-facts", has_text=f"us/school, commit {COMMIT[:12]}").wait_for()
    page.get_by_text("3 files").click()
    page.get_by_text("main/train-00001-of-00002.jsonl").wait_for()
    guest.keep("dataset-of-a-hub-page")
