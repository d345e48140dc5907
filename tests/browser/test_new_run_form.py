"""New run folds: few steps by keyboard, what is read alone is shown, an error opens its section and gets the focus."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.visitor import WHOLE

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

PAGE = "/runs/new?template=reference_game"
MOST_STOPS = 40
"""Steps by Tab through the whole page below its bar, with every section closed."""


def ready(guest: Any) -> Any:
    guest.goto(PAGE)
    guest.page.locator("#start[aria-disabled=false]").wait_for()
    return guest.page


def field(page: Any, pointer: str) -> Any:
    return page.locator(f"[data-pointer='{pointer}']")


def opened(page: Any) -> list[str]:
    found: list[str] = page.locator("#spec-form details[open]").evaluate_all(
        "all => all.map(one => one.dataset.section)"
    )
    return found


def stops(page: Any) -> int:
    """How often Tab is pressed from the page's title until the focus leaves the page."""
    page.locator("h1").click()
    for count in range(400):
        page.keyboard.press("Tab")
        if page.evaluate("!document.activeElement || !document.activeElement.closest('main')"):
            return count
    raise AssertionError("Tab does not leave the page")


def test_sections_fold_and_stay_as_they_were(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    page = ready(guest)
    assert opened(page) == ["team", "essentials"]
    fold = page.locator("#fold-all")
    fold.click()
    assert fold.inner_text() == "Close all"
    assert stops(page) > 100
    fold.click()
    assert opened(page) == []
    assert stops(page) < MOST_STOPS
    page.locator("#g-batch > summary").focus()
    page.keyboard.press("Enter")
    assert opened(page) == ["batch"]
    page.locator("#g-run > summary").click()
    page.get_by_label("Tags").fill("trial")
    page.locator("#g-run > summary").click()
    field(page, "/batch/max_carry").fill("5")
    page.locator("#g-batch > summary").click()
    head = page.locator("#g-batch > summary")
    head.get_by_text("1 changed").wait_for()
    assert "Max carries 5" in head.inner_text(), "a closed section says what is set in it"
    assert "Tags trial" in page.locator("#g-run > summary").inner_text()
    page.locator("#g-environment > summary").click()
    page.get_by_role("link", name="Home", exact=True).first.click()
    page.wait_for_url(f"{seeded.url}/")
    page.go_back()
    page.locator("#start[aria-disabled=false]").wait_for()
    assert opened(page) == ["environment"]
    assert field(page, "/batch/max_carry").input_value() == "5"
    late = "503 (Service Unavailable)"  # a prediction that took a crowded machine more than its 10 s
    assert [text for text in guest.complaints if late not in text] == []


def test_only_what_is_read_is_shown_and_nothing_hidden_is_refused(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    page = ready(guest)
    page.locator("#fold-all").click()
    loss, gate = field(page, "/algorithm/loss/type"), field(page, "/algorithm/loss/gate_positive")
    assert not gate.is_visible()
    loss.select_option("sapo")
    gate.fill("2")
    loss.select_option("ppo_clip")
    assert not gate.is_visible()
    assert field(page, "/algorithm/loss/dual_clip").is_visible()
    page.get_by_text("1 change from the template").wait_for()
    page.locator("#start[aria-disabled=false]").wait_for()
    loss.select_option("sapo")
    assert gate.input_value() == "2", "what was written is there again when it is read again"
    begins = field(page, "/sampling/replay/begins_with/name")
    assert not begins.is_visible()
    field(page, "/sampling/replay/type").select_option("archive")
    begins.fill("good_run")
    page.locator("[data-error='/sampling/replay/begins_with/name']").get_by_text("no imported rows good_run").wait_for()
    begins.fill("")
    field(page, "/sampling/replay/type").select_option("none")
    begins.wait_for(state="hidden")
    page.locator("#start[aria-disabled=false]").wait_for()

    decoding, block, steps = (
        field(page, f"/policies/speaker/model/{name}") for name in ("decoding", "block", "denoising_steps")
    )
    assert not block.is_visible()
    decoding.select_option("block_diffusion")
    field(page, "/policies/speaker/log_probs").select_option("diffu_grpo")
    block.fill("2")
    page.locator("[data-error='/policies/speaker/model/denoising_steps']").get_by_text("Set 2 or less.").wait_for()
    steps.fill("2")
    page.locator("#start[aria-disabled=false]").wait_for()
    decoding.select_option("left_to_right")
    assert not steps.is_visible(), "only blocks are revealed in steps"
    page.locator("#start[aria-disabled=false]").wait_for()

    least, most = (field(page, f"/policies/speaker/devices/{name}") for name in ("least", "most"))
    field(page, "/mechanisms/allocation/type").select_option("static")
    assert not most.is_visible(), "static devices do not change"
    home = field(page, "/mechanisms/allocation/homes/speaker")
    seat = page.locator("[data-seat=speaker]")
    assert seat.text_content() == "size M, own policy"
    home.fill("1")
    page.locator("[data-error='/mechanisms/allocation/homes/speaker']").get_by_text("Set [0].").wait_for()
    field(page, "/resources/training_devices").fill("2")
    page.locator("#start[aria-disabled=false]").wait_for()
    field(page, "/policies/speaker/tuning/type").select_option("lora")
    assert not least.is_visible(), "an adapter is trained on one device"
    field(page, "/policies/speaker/tuning/rank").fill("4")
    warmup = field(page, "/policies/speaker/warmup")
    warmup.fill('{"steps": 0}')
    told = page.locator("[data-error='/policies/speaker/warmup']")
    told.get_by_text("at least 1").wait_for()
    warmup.fill("")
    told.wait_for(state="hidden")
    field(page, "/agents/speaker/trainable").uncheck()
    until(page, lambda: seat.text_content() == "size M, own policy, frozen")
    field(page, "/agents/speaker/trainable").check()
    window, first = (field(page, f"/mechanisms/allocation/window/{name}") for name in ("type", "first_s"))
    assert not window.is_visible(), "trainers share no device"
    field(page, "/mechanisms/allocation/type").select_option("colocated")
    window.select_option("measured")
    first.fill("2")
    page.locator("[data-error='/mechanisms/allocation/window/first_s']").get_by_text("Set 5 or more.").wait_for()
    field(page, "/mechanisms/allocation/type").select_option("agent_centric")
    assert not first.is_visible(), "nobody reads it"
    home.wait_for(state="hidden")
    page.locator("#start[aria-disabled=false]").wait_for()
    page.get_by_role("tab", name="YAML").click()
    page.wait_for_function("() => document.querySelector('#yaml').value.includes('rank: 4')")
    assert "homes: {}" in page.locator("#yaml").input_value(), "what is hidden is not sent"

    page.get_by_role("tab", name="Form").click()
    find = page.get_by_label("Find a setting")
    find.fill("dual clip")
    page.get_by_text("Dual-clip ratio applies when Loss is ppo clip.").wait_for()
    find.fill("rank")
    shown = page.locator("#spec-form [data-pointer]:visible").evaluate_all("all => all.map(one => one.dataset.pointer)")
    assert shown == ["/policies/speaker/tuning/rank"]
    find.press("Escape")
    assert field(page, "/seed").is_visible(), "the sections are as they were before the search"


def test_an_error_opens_its_section_and_gets_the_focus(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    page = ready(guest)
    assert "algorithm" not in opened(page)
    field(page, "/algorithm/loss/type").select_option("gspo")
    clip = field(page, "/algorithm/loss/clip_low")
    clip.and_(page.locator("[aria-invalid=true]")).wait_for()
    assert "algorithm" in opened(page), "an error elsewhere opens its section"
    assert not clip.evaluate("node => node === document.activeElement"), "and takes the focus from nobody"
    page.locator("#g-algorithm > summary").click()
    page.locator("#start").focus()
    page.keyboard.press("Enter")
    assert clip.evaluate("node => node === document.activeElement"), "whoever wants to start is led to it"
    assert clip.is_visible()
    assert guest.seen_in("new-run-error", WHOLE, "#spec-form") == {}
    for name in ("clip_low", "clip_high"):
        field(page, f"/algorithm/loss/{name}").fill("0.0004")
    page.locator("#start[aria-disabled=false]").wait_for()
    page.locator("#fold-all").click()
    page.locator("#spec-form details:not([open])").first.wait_for(state="hidden")
    assert guest.seen_in("new-run-open", WHOLE) == {}


RANGE = {"low": 1.0, "likely": 1.5, "high": 2.0}
PREDICTED = {
    **dict.fromkeys(("step_s", "tokens_s", "hours", "device_hours"), RANGE),
    "utilisation": {"engine": RANGE, "trainer": RANGE}, "bubble": {"engine": [], "trainer": []}, "cost": None,
    "devices": [], "figures": [], "why": [], "steps": 3, "simulations": 3,
    "split": {
        "devices": 4, "looked_at": 2, "stopped": False, "least_gain": 0.02,
        "better": {
            "engines": 3, "trainers": 1, "shared": False, "step_s": RANGE,
            "gain": {"low": 0.1, "likely": 0.2, "high": 0.3},
            "changes": [{"pointer": "/resources/rollout_devices", "before": 1, "value": 3}],
        },
    },
}  # fmt: skip


def until(page: Any, reached: Callable[[], bool]) -> None:
    """Wait while the page goes on asking."""
    for _ in range(300):
        if reached():
            return
        page.wait_for_timeout(100)
    raise AssertionError("nothing more was asked")


def test_an_advised_split_goes_into_the_form_and_a_stale_plan_is_predicted_anew(
    seeded: Any, visit: Callable[..., Any]
) -> None:
    guest, predicted = visit(seeded), []
    guest.sign_in()

    def plan(route: Any) -> None:
        asked = route.request.post_data_json
        wished = asked.pop("predict", False)
        answer = route.fetch(post_data=asked)
        if wished:
            predicted.append(asked)
            body = answer.json() | {"prediction": PREDICTED, "plan_token": f"token-{len(predicted)}"}
            route.fulfill(response=answer, json=body)
        else:
            route.fulfill(response=answer)

    guest.page.route("**/api/v1/runs/plan", plan)
    page = ready(guest)
    page.locator("#split").wait_for()
    assert "3 engines, 1 trainer" in page.locator("#split").inner_text()
    assert guest.violations("#split") == []
    page.get_by_role("button", name="Use this split").press("Enter")
    assert field(page, "/resources/rollout_devices").input_value() == "3"
    assert page.evaluate("document.activeElement.dataset.pointer") == "/resources/rollout_devices"
    page.wait_for_function("() => !document.querySelector('.plan .dim')")
    tokens: list[str] = []

    def run(route: Any) -> None:
        tokens.append(route.request.post_data_json["plan_token"])
        problem = {"code": "plan_stale", "detail": "Changed since the plan: price. Plan again.", "errors": []}
        route.fulfill(status=409, content_type="application/problem+json", json=problem)

    page.route("**/api/v1/runs", run)
    until(page, lambda: len(predicted) == 2)
    page.locator("#split").wait_for()
    for _ in range(2):
        before = len(predicted)
        page.locator("#start").click()
        until(page, lambda before=before: len(predicted) > before)  # type: ignore[misc]
        page.locator("#split").wait_for()
    assert tokens == ["token-2", "token-3"]  # the first one held no more, and was not sent again


def test_one_prediction_at_a_time_is_asked_for_then_that_of_the_newest_settings(
    seeded: Any, visit: Callable[..., Any]
) -> None:
    guest, planned, held = visit(seeded), [], []
    guest.sign_in()

    def plan(route: Any) -> None:
        body = route.request.post_data_json
        if body.pop("predict", False):
            held.append((route, body))
        else:
            planned.append(body)
            route.continue_()

    guest.page.route("**/api/v1/runs/plan", plan)
    page = ready(guest)
    page.locator("#fold-all").click()
    until(page, lambda: len(held) == 1)
    for steps in ("41", "42"):
        field(page, "/budget/train_steps").fill(steps)
        until(page, lambda steps=steps: steps in str(planned[-1]))  # type: ignore[misc]
        page.wait_for_timeout(1500)  # longer than the page waits before it asks
    assert len(held) == 1
    held[0][0].abort()
    until(page, lambda: len(held) == 2)
    assert "42" in str(held[1][1])


UNKNOWN = {
    "name": "engine.token", "of": "speaker", "meaning": "A token of a reply", "unit": "s", "source": "default",
    "source_text": "", **RANGE,
}  # fmt: skip
LONG = "[data-pointer='/budget/train_steps']"


@pytest.mark.parametrize("end", [pytest.param("completed", marks=pytest.mark.full), "failed"])
def test_a_measuring_run_is_followed_to_its_end_and_planned_anew(
    seeded: Any, visit: Callable[..., Any], end: str
) -> None:
    guest, asked = visit(seeded), []
    guest.sign_in()
    run = {"id": "7", "key": "profile-7", "status": "queued", "step": 0, "max_steps": 9, "finished_at": None}
    ended = {**run, "status": end, "step": 5, "finished_at": "2026-01-01T00:00:00Z", "reason_text": "Its engine died."}
    looks: list[Any] = [run]  # the last one is found until the test adds others: no stage passes unseen

    def plan(route: Any) -> None:
        body = route.request.post_data_json
        wished = body.pop("predict", False)
        answer = route.fetch(post_data=body)
        known = end == "completed" and looks[-1] is ended
        told = {"prediction": {**PREDICTED, "figures": [] if known else [UNKNOWN]}} if wished else {}
        asked.append(wished)
        route.fulfill(response=answer, json=answer.json() | told)

    def look(route: Any) -> None:
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        if found is None:
            route.abort()
        else:
            route.fulfill(json=found)

    guest.page.route("**/api/v1/runs/plan", plan)
    problem = {"code": "quota", "detail": "Its project may hold no more devices.", "errors": []}
    answers = [(409, problem), (201, run)] if end == "failed" else [(201, run)]

    def measure(route: Any) -> None:
        status, body = answers.pop(0)
        route.fulfill(status=status, json=body)

    guest.page.route("**/api/v1/runs/measure", measure)
    guest.page.route("**/api/v1/runs/7", look)
    page = ready(guest)
    page.get_by_role("button", name="Measure first").click()
    if end == "failed":
        page.get_by_text("Nothing was measured: Its project may hold no more devices.").wait_for()
        page.get_by_role("button", name="Measure first", disabled=False).click()
    going = page.locator("#measuring")
    going.get_by_text("profile-7 measures these models: queued.").wait_for()
    assert going.get_by_role("link").get_attribute("href") == "/runs/profile-7"
    looks += [{**run, "status": "running"}, None, {**run, "status": "running", "step": 4}]
    page.locator(LONG).fill("-1")
    page.locator("[data-error='/budget/train_steps']").get_by_text("must be at least 0").wait_for()
    going.get_by_text("step 4 of 9").wait_for()
    assert page.locator(LONG).get_attribute("aria-invalid") == "true", "a look at the run takes no error away"
    assert page.locator("#start").get_attribute("aria-disabled") == "true"
    before = asked.count(True)
    page.locator(LONG).fill("60")
    until(page, lambda: asked.count(True) == before + 1)
    looks.append(ended)
    again = page.get_by_role("button", name="Measure first")
    if end == "completed":
        page.get_by_text("profile-7 has measured these models.").wait_for()
        until(page, lambda: page.locator("#split").count() == 1 and again.count() == 0)
        assert going.is_hidden()
    else:
        going.get_by_text("profile-7 measured nothing: Its engine died.").wait_for()
        again.wait_for()
        assert again.is_enabled()
    until(page, lambda: asked.count(True) == before + 2)  # the plan is predicted anew
    assert looks == [ended], "a look that failed is taken again"
    assert guest.violations(".plan") == []
