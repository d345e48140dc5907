"""New run chooses devices: by keyboard, in every look; one press fills the form; a refusal says what is legal."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.visitor import WHOLE

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]


def spread(likely: float) -> dict[str, float]:
    return {"low": 0.9 * likely, "likely": likely, "high": 1.2 * likely}


def plan(rollout: int, training: int, step_s: float) -> dict[str, Any]:
    values = {
        "/resources/rollout_pool": "slow", "/resources/training_pool": "fast",
        "/resources/rollout_devices": rollout, "/resources/training_devices": training,
    }  # fmt: skip
    return {
        "rollout_pool": "slow", "rollout_devices": rollout, "engine_devices": 1, "training_pool": "fast",
        "training_devices": training, "shared": False, "lag_bound": 0, "step_s": spread(step_s), "hours": spread(2.0),
        "cost_per_hour": 12.0, "cost_per_step": spread(0.1), "cost": spread(24.0), "engines_busy": 0.8,
        "trainers_busy": 0.6, "simulated": True, "bottleneck": "engines",
        "why": ["Generation bounds a step: all prompts and replies take 2 s of 3 s a step."],
        "changes": [{"pointer": name, "before": None, "value": value} for name, value in values.items()],
        "patch": {},
    }  # fmt: skip


CHOICE = {
    "objective": "cheapest", "best": plan(6, 2, 3.0), "others": [plan(4, 1, 4.0)], "asked": plan(1, 1, 6.0),
    "looked_at": 90, "simulated": 4, "stopped": False, "left_out": ["spot: no price of a device hour."],
    "unmeasured": [],
}  # fmt: skip
PROBLEM = {
    "code": "validation_error", "title": "Invalid values", "status": 400, "detail": "No devices are chosen.",
    "errors": [{"pointer": "/choose/deadline_s", "code": "out_of_reach", "location": "body",
                "detail": "The fastest ends after about 5400 seconds.", "hint": "Set at least 5508."}],
}  # fmt: skip


def test_devices_are_chosen_by_keyboard_and_go_into_the_form(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    asked: list[dict[str, Any]] = []

    def answer(route: Any) -> None:
        body = route.request.post_data_json
        wished = body.pop("choose", None)
        if wished is None:
            route.continue_()
        elif wished.get("deadline_s") == 3600:
            asked.append(wished)
            route.fulfill(status=400, content_type="application/problem+json", json=PROBLEM)
        else:
            asked.append(wished)
            found = route.fetch(post_data=body)
            route.fulfill(response=found, json=found.json() | {"choice": CHOICE})

    guest.page.route("**/api/v1/runs/plan", answer)
    guest.goto("/runs/new?template=reference_game")
    page = guest.page
    page.locator("#start[aria-disabled=false]").wait_for()
    page.locator("#choose > summary").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Objective", exact=True).select_option("cheapest")
    page.get_by_label("Limit", exact=True).select_option("deadline_s")
    page.get_by_label("Amount", exact=True).fill("1")
    page.get_by_label("Amount", exact=True).press("Enter")
    page.get_by_text("Set at least 5508.").wait_for()
    page.get_by_label("Amount", exact=True).fill("3")
    page.get_by_label("Lag bound, at most").fill("2")
    page.get_by_role("button", name="Choose", exact=True).press("Enter")
    page.get_by_text("6 of slow for rollout, 2 of fast for training").wait_for()
    assert asked == [
        {"objective": "cheapest", "free": False, "deadline_s": 3600},
        {"objective": "cheapest", "free": False, "deadline_s": 10800, "max_lag": 2},
    ]
    page.get_by_text("50 % less time here").wait_for()
    page.locator("#choose-answer summary").click()
    guest.keep("new-run-choose")
    assert guest.seen_in("new-run-choose", WHOLE, "#choose") == {}
    page.get_by_role("button", name="Use this: 6 of slow").press("Enter")
    assert page.locator("[data-pointer='/resources/rollout_devices']").first.input_value() == "6"
    assert page.locator("[data-pointer='/resources/training_pool']").input_value() == "fast"
    page.wait_for_function("() => document.querySelector('#choose-answer').classList.contains('dim')")
