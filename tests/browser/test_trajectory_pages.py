"""Trajectories, group compare and checkpoints in the browser: both themes, three widths, keys, and hostile text."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

FINISHED = 0


def test_coloured_tokens_are_readable(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[FINISHED]}/trajectories/955-0-1")
    guest.page.get_by_role("button", name="Log-prob").click()
    guest.page.locator(".tok .k").nth(2).click()
    assert guest.seen_in("trajectory-tokens", (("light", 1440), ("dark", 1440))) == {}


def test_text_of_models_stays_text_in_every_view(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.page.on("dialog", lambda dialog: pytest.fail("a script of a model's text ran"))
    key = seeded.keys[FINISHED]
    for path in ("955-0-1", "955-0-1?view=scores", "955-0-1?view=raw", "compare?draw=955", "compare?draw=955&show=all"):
        guest.goto(f"/runs/{key}/trajectories/{path}")
        assert guest.page.locator("main img, main script").count() == 0
    guest.goto(f"/runs/{key}/trajectories/955-0-1")
    assert "<img src=x onerror=alert(1)>" in guest.page.locator("#conversation").inner_text()
    guest.page.get_by_role("button", name="Log-prob").click()
    token = guest.page.locator(".tok .k", has_text="<script>").first
    token.wait_for()
    token.hover()
    assert "<script>" in guest.page.locator("[data-facts]", has_text="log-prob").first.inner_text()
    assert guest.page.locator("#conversation img, #conversation script").count() == 0
    guest.goto(f"/runs/{key}/trajectories/955-0-1?view=raw")
    guest.page.wait_for_function("() => document.querySelector('[data-raw]').textContent.includes('onerror')")
    assert guest.page.locator("[data-raw] *").count() == 0
    assert guest.complaints == []


def test_the_list_is_walked_with_the_keyboard(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    key = seeded.keys[FINISHED]
    guest.goto(f"/runs/{key}/trajectories")
    press, page = guest.page.keyboard.press, guest.page

    def at(member: str) -> None:
        page.wait_for_function(
            "id => document.querySelector('[data-trajectory]').dataset.trajectory === id", arg=member
        )

    at("959-7-1")
    press("j")
    at("959-6-1")
    press("k")
    at("959-7-1")
    press("{")
    at("959-6-1")
    assert page.url.endswith("959-6-1")
    for colours in ("logprob", "advantage", "version", "mask", "plain"):
        press("t")
        assert page.locator(f"[data-tokens={colours}]").get_attribute("aria-pressed") == "true"
    assert page.locator(".said").first.is_visible()
    press("e")
    assert page.locator("details.prompt[open]").count() == page.locator("details.prompt").count() > 0
    press("x")
    press("j")
    at("959-5-1")
    press("x")
    assert page.locator("a.it.chosen").count() == 2
    press("c")
    page.wait_for_url("**/trajectories/compare?ids=959-6-1,959-5-1")
    assert page.locator("table.cmp thead th").count() == 3
    press("c")
    page.wait_for_url("**/trajectories/959-*")
    guest.goto(f"/runs/{key}/trajectories")
    press("[")
    page.wait_for_url("**/trajectories?step=239")
    assert "239" in page.locator("#t-title").inner_text()


def test_tokens_say_their_figures_to_the_keyboard(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[FINISHED]}/trajectories/955-0-1")
    guest.page.keyboard.press("t")
    tokens = guest.page.locator(".tok").first
    tokens.wait_for()
    tokens.focus()
    first = guest.page.locator("[data-facts]").first.inner_text()
    assert "log-prob" in first
    guest.page.keyboard.press("ArrowRight")
    assert guest.page.locator(".tok").first.locator(".k.cur").get_attribute("data-i") == "1"
    assert guest.page.locator("[data-facts]").first.inner_text() != first


def test_an_episode_is_replayed_turn_by_turn(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[FINISHED]}/trajectories/955-0-1")
    page, turns = guest.page, guest.page.locator("article.msg")
    count = turns.count()
    page.keyboard.press(".")
    assert page.locator("article.msg:visible").count() == 1
    page.keyboard.press(".")
    assert page.locator("article.msg:visible").count() == 2
    role = turns.nth(1).get_attribute("data-role")
    assert page.locator("#replay [data-box].now").get_attribute("data-box") == role
    assert page.locator("[data-replay-words]").inner_text() == f"Turn 2 of {count}: {role}"
    page.keyboard.press(",")
    assert page.locator("article.msg:visible").count() == 1
    page.keyboard.press("p")
    page.locator("[data-replay=play]", has_text="Pause").wait_for()
    page.keyboard.press("p")
    page.locator("[data-replay=play]", has_text="Play").wait_for()
    assert guest.violations() == []
    page.get_by_role("button", name="Replay").click()
    assert page.locator("article.msg:visible").count() == count


def test_masks_and_versions_are_told_of_tokens(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[FINISHED]}/trajectories/955-0-1")
    guest.page.get_by_role("button", name="Mask", exact=True).click()
    guest.page.locator(".tok .ctx").first.wait_for()
    assert guest.page.locator(".tok .ctx").first.is_visible()
    assert "mask 0" in guest.page.locator(".lpkey").first.inner_text()
    guest.page.get_by_role("button", name="Version", exact=True).click()
    guest.page.locator(".lpkey", has_text="every token is of v").first.wait_for()
    assert guest.page.locator(".tok .ctx").count() == 0
    assert guest.violations() == []


def test_a_label_is_set_and_found_again(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    key, page = seeded.keys[FINISHED], guest.page
    guest.goto(f"/runs/{key}/trajectories/956-1-1")
    page.get_by_role("button", name="Label").click()
    page.locator("#label-dialog input[name=label]").fill("reward bug")
    page.locator("#label-dialog textarea").fill("<script>alert(1)</script>")
    page.get_by_role("button", name="Save label").click()
    page.locator(".thd .tag", has_text="reward bug").wait_for()
    guest.goto(f"/runs/{key}/trajectories?label=any")
    assert page.locator("a.it").count() == 1
    page.get_by_role("button", name="Label").click()
    page.get_by_role("button", name="Remove my label").click()
    page.locator(".thd .tag").wait_for(state="detached")
    guest.goto(f"/runs/{key}/trajectories?label=any")
    assert "No trajectory matches" in page.locator("#trj-list").inner_text()
    assert guest.complaints == []


def test_pages_and_filters_work_without_scripts(seeded: Any, chromium: Any, visit: Callable[..., Any]) -> None:
    signed = visit(seeded)
    signed.sign_in()
    context = chromium.new_context(java_script_enabled=False, storage_state=signed.page.context.storage_state())
    try:
        page = context.new_page()
        page.goto(f"{seeded.url}/runs/{seeded.keys[FINISHED]}/trajectories?solved=false")
        assert page.locator("a.it").count() > 0
        page.get_by_role("link", name="Scores").click()
        assert "mean" in page.locator("#conversation").inner_text()
        page.goto(f"{seeded.url}/runs/{seeded.keys[FINISHED]}/trajectories")
        first = page.locator("a.it").first.get_attribute("data-id")
        page.get_by_role("link", name="More episodes").click()
        assert page.locator("a.it").first.get_attribute("data-id") != first
        page.get_by_role("link", name="Previous").click()
        assert page.locator("a.it").first.get_attribute("data-id") == first
    finally:
        context.close()
