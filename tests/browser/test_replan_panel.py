"""What a running run is proposed, on its overview: figures, the rates behind them, and the verbs."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import program
from tests.browser.visitor import WHOLE

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

RUNNING, FINISHED = 1, 0


def test_proposed_devices_fit_are_accessible_and_can_be_set_aside(seeded: Any, visit: Callable[..., Any]) -> None:
    key = seeded.keys[RUNNING]
    program("propose_devices", {**seeded.environment, "RUN": key, "PARENT": seeded.keys[FINISHED]})
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{key}")
    panel = guest.page.locator("#replan")
    panel.get_by_text("rollout_devices 2 → 3").first.wait_for()
    for summary in ("Rates", "Former proposals"):
        panel.locator("summary", has_text=summary).click()
    panel.get_by_text("Withdrawn: rollout_devices 2 → 3").wait_for()
    assert guest.seen_in("replan", WHOLE) == {}
    panel.get_by_role("button", name="Dismiss").click()
    panel.get_by_text("Dismissed: rollout_devices 2 → 3").wait_for(state="attached")
    assert panel.get_by_role("button", name="Dismiss").count() == 0
