"""Home, the list of runs and New run in a browser: looks, keys, selection, verbs on many."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

FINISHED, RUNNING, OTHER, PAUSED, FAILED, QUEUED = range(6)


def rows(guest: Any) -> Any:
    return guest.page.locator("tr.go")


def test_rows_are_chosen_with_mouse_and_keys(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs?ordering=name")
    page, bar = guest.page, guest.page.locator("#bulk")
    assert not bar.is_visible()
    page.keyboard.press("j")
    page.keyboard.press("x")
    bar.wait_for()
    assert "1 selected" in bar.inner_text()
    rows(guest).nth(2).locator(".ck").click(modifiers=["Shift"])
    page.wait_for_function("() => document.querySelectorAll('tr.go.sel').length === 3")
    assert page.url.endswith("/runs?ordering=name"), "a click on a box opened the run"
    page.get_by_label("Select all runs of this page").click()
    page.wait_for_function(
        "() => document.querySelectorAll('tr.go.sel').length === document.querySelectorAll('tr.go').length"
    )
    page.keyboard.press("Escape")
    bar.wait_for(state="hidden")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")


def test_the_selection_survives_a_re_read(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs")
    rows(guest).first.locator(".ck").click()
    guest.page.locator("tr.go.sel").wait_for()
    guest.page.evaluate(
        """() => new Promise((done) => {
          const list = document.querySelector('#run-list');
          list.addEventListener('reread', () => done(), {once: true});
          import('/static/webui/js/regions.js').then((regions) => regions.reread(list, true));
        })"""
    )
    assert guest.page.locator("tr.go.sel input:checked").count() == 1


def test_verbs_that_do_not_fit_stay_with_their_reason(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs?status=completed")
    rows(guest).first.locator(".ck").click()
    pause = guest.page.locator("#bulk [data-bulk=pause]")
    pause.wait_for()
    assert (pause.get_attribute("aria-disabled"), pause.get_attribute("title")) == ("true", "It is completed.")
    archive = guest.page.locator("#bulk [data-bulk=archive]")
    assert archive.get_attribute("aria-disabled") == "false"
    assert guest.violations() == []
    guest.keep("list-runs-bulk", full=False)


def test_tags_are_put_on_all_that_match(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs?q=hot+or+cold")
    page = guest.page
    rows(guest).first.locator(".ck").click()
    page.locator("[data-select-all]").click()
    page.locator("#bulk [data-bulk=tag]").click()
    page.get_by_label("Comma-separated tags").fill("warm, second look")
    page.keyboard.press("Enter")
    page.get_by_text("Tag: 2 of 2").wait_for()
    guest.goto("/runs?tag=warm&tag=second+look")
    assert rows(guest).count() == 2
    chip = page.locator("#run-chips .fc").first
    assert "Tag is warm and second look" in " ".join(chip.inner_text().split())
    chip.get_by_role("link").click()
    page.wait_for_url("**/runs")


def test_a_stop_of_many_says_who_is_left_alone(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs?q=hot+or+cold")
    for index in range(2):
        rows(guest).nth(index).locator(".ck").click()
    guest.page.locator("#bulk [data-bulk=stop]").click()
    dialog = guest.page.locator("#confirm")
    dialog.get_by_role("heading", name="Stop 1 run?").wait_for()
    assert "1 of 2 will be skipped" in dialog.inner_text()
    dialog.get_by_role("button", name="Cancel").click()


def test_filters_are_built_in_the_dialog(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs?q=o")
    page = guest.page
    page.get_by_role("button", name="Filter", exact=True).click()
    page.get_by_label("Filter by").select_option("config")
    page.get_by_label("Field").fill("batch.tasks_per_step")
    page.get_by_label("Compared").select_option("__gte")
    page.locator("[data-value]").fill("16")
    assert guest.violations() == []
    page.get_by_role("button", name="Add filter").click()
    page.wait_for_url("**config.batch.tasks_per_step__gte=16**")
    assert "q=o" in page.url
    page.get_by_role("link", name="Team reward").click()
    page.wait_for_url("**ordering=-reward**")
    rewards = [float(text) for text in page.locator("td.rwd .num").all_inner_texts() if text.strip() != "–"]
    assert rewards == sorted(rewards, reverse=True)
    assert len(rewards) > 2


def test_a_view_is_saved_and_forgotten(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs?status=failed&ordering=name")
    page = guest.page
    page.get_by_role("button", name="Save this view").click()
    page.locator("#ask [data-answer]").fill("Broken")
    page.keyboard.press("Enter")
    link = page.locator("#run-views").get_by_role("link", name="Broken")
    link.wait_for()
    guest.goto("/runs")
    link.click()
    page.wait_for_url("**/runs?status=failed**")
    page.get_by_role("button", name="Delete the view Broken").click()
    page.locator("#confirm").get_by_role("button", name="Delete view").click()
    link.wait_for(state="detached")


def test_the_file_holds_the_columns_shown(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs?q=hot&columns=progress")
    with guest.page.expect_download() as download:
        guest.page.get_by_role("link", name="Download these columns as CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "key,name,status,reason,step,max_steps"
    assert len(lines) == 3


def test_a_draft_of_new_run_survives_the_page(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    page = guest.page
    guest.goto("/runs/new?template=reference_game")
    page.locator("#plan-body .tile").first.wait_for()
    page.locator("#fold-all").click()
    page.get_by_label("Tasks per step").fill("48")
    page.get_by_label("Tags").fill("trial")
    page.get_by_text("draft saved").wait_for()
    page.reload()
    page.locator("#plan-body .tile").first.wait_for()
    assert page.get_by_label("Tasks per step").input_value() == "48"
    assert page.get_by_label("Tags").input_value() == "trial"
    page.get_by_role("button", name="Discard changes").click()
    page.locator("#confirm[open]").get_by_role("button", name="Discard changes").click()
    page.get_by_text("Changes discarded").wait_for()
    page.reload()
    page.locator("#plan-body .tile").first.wait_for()
    assert page.get_by_label("Tasks per step").input_value() == "96"


def test_a_reward_is_chosen_with_its_fields_and_its_errors_stand_at_them(
    seeded: Any, visit: Callable[..., Any]
) -> None:
    guest = visit(seeded)
    guest.sign_in()
    page = guest.page
    guest.goto("/runs/new?template=reference_game")
    page.locator("#start[aria-disabled=false]").wait_for()
    page.locator("#fold-all").click()

    def shown() -> list[str]:
        return page.locator("[data-pointer^='/reward/']:visible").evaluate_all(
            "all => all.map(one => one.dataset.pointer.split('/').at(-1))"
        )

    form, queued = page.locator("#pane-form"), ["timeout_s", "max_tries", "wait_s"]
    assert shown() == ["type"]
    kind = page.get_by_label("Reward source", exact=True)
    kind.select_option("service")
    assert shown() == ["type", "url", "secret", *queued]
    form.get_by_text("url is required. Write it like https://").wait_for()
    page.get_by_label("Service URL").fill("judge")
    form.get_by_text("url cannot be 'judge'. Write it like https://").wait_for()
    page.get_by_label("Reward timeout, s").fill("soon")
    form.get_by_text("Write a number.").wait_for()
    guest.keep("new-run-reward")
    kind.select_option("brevity")
    assert shown() == ["type", "cost_per_token", *queued]
    page.locator("#start[aria-disabled=false]").wait_for()
    assert page.locator("#change-count").inner_text() == "1 change from the template"
    kind.select_option("environment")
    page.get_by_text("No changes from the template").wait_for()
    page.locator("#start[aria-disabled=false]").wait_for()


def test_create_watch_and_stop_with_the_keyboard_alone(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    page = guest.page
    guest.goto("/runs")
    for key in ("g", "n"):
        page.keyboard.press(key)
    page.wait_for_url("**/runs/new")
    use = page.get_by_role("link", name="Use Reference game")
    for _ in range(80):
        if use.evaluate("link => link === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**template=reference_game")
    page.locator("#start[aria-disabled=false]").wait_for()
    page.locator("#run-name").focus()
    page.keyboard.type("By keyboard")
    page.wait_for_timeout(600)
    page.locator("#start").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/by-keyboard-*")
    page.locator("#pending").wait_for()
    for key in ("g", "r"):
        page.keyboard.press(key)
    page.wait_for_url("**/runs")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.locator("#bulk").wait_for()
    page.locator("#bulk [data-bulk=pause]").focus()
    assert page.locator("#bulk [data-count]").inner_text() == "1 selected"
    page.keyboard.press("Escape")
    page.locator("#bulk").wait_for(state="hidden")


def test_notes_and_tags_are_written_on_the_run(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[FINISHED]}")
    page = guest.page
    page.locator("#rail-note").get_by_role("button", name="Edit").click()
    dialog = page.locator("#edit-run")
    dialog.get_by_label("Notes (Markdown)").fill("Reached **0.96**.\n\n<img src=x onerror=alert(1)>")
    dialog.get_by_label("Comma-separated tags").fill("<b>")
    dialog.get_by_role("button", name="Save notes").click()
    dialog.locator("[data-error='/tags']").wait_for()
    dialog.get_by_label("Comma-separated tags").fill("keep, best")
    assert guest.violations() == []
    dialog.get_by_role("button", name="Save notes").click()
    page.locator("#rail-note strong", has_text="0.96").wait_for()
    assert page.locator("#rail-note img").count() == 0
    assert page.locator("#rail-note .tag").all_inner_texts() == ["best", "keep"]
    page.locator("#rail-note .tag", has_text="best").click()
    page.wait_for_url("**/runs?tag=best")
    assert rows(guest).count() == 1
