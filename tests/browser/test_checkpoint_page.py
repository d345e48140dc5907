"""Checkpoints in a browser: why each stays, pins, the way into a fork; both themes, wide and narrow."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.services]

LINEAGE = """
INSERT INTO store.lineage (run_id, policy, from_run, from_policy, from_version, from_step, checkpoint, digest, state)
SELECT r.no, p.policy, o.no, p.policy, 40, 40, true, 'd', 's'
FROM runs_run r, runs_run o, (VALUES ('speaker'), ('listener')) AS p(policy) WHERE r.key = %s AND o.key = %s
ON CONFLICT DO NOTHING"""


@pytest.fixture
def guest(seeded: Any, visit: Callable[..., Any]) -> Any:
    guest = visit(seeded)
    guest.sign_in()
    return guest


def test_the_pages_read_well(guest: Any, seeded: Any) -> None:
    with psycopg.connect(seeded.environment["DATABASE_URL"], autocommit=True) as conn:
        conn.execute(LINEAGE, [seeded.keys[1], seeded.keys[0]])
    for name, path in (
        ("checkpoints", f"/runs/{seeded.keys[1]}/checkpoints"),
        ("fork", f"/runs/new?from={seeded.keys[1]}&checkpoint={newest(guest, seeded)}"),
    ):
        guest.goto(path)
        guest.settle()
        assert guest.seen_in(name) == {}
    late = "503 (Service Unavailable)"  # a prediction that took a crowded machine more than its 10 s
    assert [text for text in guest.complaints if late not in text] == []


def newest(guest: Any, seeded: Any) -> int:
    with psycopg.connect(seeded.environment["DATABASE_URL"]) as conn:
        found = conn.execute(
            "SELECT max(c.step) FROM store.checkpoint c JOIN runs_run r ON r.no = c.run_id WHERE r.key = %s "
            "AND c.state = 'whole' AND c.parts <> '{}'",
            [seeded.keys[1]],
        ).fetchone()
    return int(found[0])


def test_a_pin_is_set_and_taken_back_and_a_fork_is_sent_with_what_it_begins_with(guest: Any, seeded: Any) -> None:
    page, step = guest.page, newest(guest, seeded)
    guest.goto(f"/runs/{seeded.keys[1]}/checkpoints")
    row = page.locator(f"tr[data-step='{step}']")
    for pinned in (1, 0):
        page.wait_for_load_state()
        with page.expect_navigation():
            row.get_by_role("button", name="Pin the checkpoint").click()
        assert row.get_by_text("pinned", exact=True).count() == pinned
    row.get_by_role("link", name="Fork the checkpoint").click()
    page.wait_for_url("**/runs/new?**")
    assert f"after step {step}" in page.locator("#fork").inner_text()
    page.locator("#fork-take").select_option("training_state")
    page.wait_for_function("() => document.querySelector('.plan').getAttribute('aria-busy') === 'false'")
    with page.expect_response(lambda answer: answer.url.endswith("/actions/fork")) as asked:
        page.get_by_role("button", name="Save as draft").click()
    assert asked.value.status == 201, asked.value.text()
    sent = asked.value.request.post_data_json
    assert (sent["checkpoint"], sent["take"]) == (step, "training_state")
    page.wait_for_url(lambda url: "/runs/new" not in url)
    guest.goto(f"{page.url.removeprefix(seeded.url)}/checkpoints")
    assert "started from" in page.locator("section[aria-labelledby=ln-title]").inner_text()
    assert guest.complaints == []


def test_a_checkpoint_becomes_a_model(guest: Any, seeded: Any) -> None:
    page, step = guest.page, newest(guest, seeded)
    guest.goto(f"/runs/{seeded.keys[1]}/checkpoints")
    page.locator(f"[data-promote='{step}']").click()
    dialog = page.locator("#promote")
    dialog.get_by_label("Name of the model").fill("Not a name")
    dialog.get_by_role("button", name="Make the model").click()
    page.locator("#promote-error:not([hidden])").wait_for()
    assert guest.violations("#promote") == []
    dialog.get_by_label("Policy").select_option("solver")
    dialog.get_by_label("Name of the model").fill("from_a_run")
    page.keyboard.press("Enter")
    page.wait_for_url("**/models/*-*")
    assert f"{seeded.keys[1]}, step {step}" in page.locator("#model-of").inner_text()
    page.locator("#model-progress").wait_for()
