"""The text of a new run: discarding asks, sparse text means what it means over REST, one error hides no other."""

from typing import Any

import pytest

from tests.browser.visitor import Site

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

PAGE = "/runs/new?template=reference_game"
SPARSE = "name: my first run\nbudget: {train_steps: 200}\nseed: 7\n"
"""The text of the quickstart."""


def at_page(seeded: Site, visit: Any) -> Any:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(PAGE)
    guest.page.locator("#start[aria-disabled=false]").wait_for()
    return guest


def written(page: Any, text: str) -> None:
    page.locator("#tab-yaml").click()
    page.wait_for_function("() => document.querySelector('#yaml').value.includes('train_steps')")
    page.locator("#yaml").fill(text)


def test_discarding_an_edited_text_asks(seeded: Site, visit: Any) -> None:
    page = at_page(seeded, visit).page
    page.locator("#discard").click()
    assert not page.locator("#confirm").is_visible(), "nothing was changed, so nothing is lost"
    written(page, "budget: [unfinished")
    page.locator("#yaml-errors li").first.wait_for()
    page.locator("#discard").click()
    page.locator("#confirm[open]").get_by_role("button", name="Cancel").click()
    assert page.locator("#yaml").input_value() == "budget: [unfinished"
    page.locator("#discard").click()
    page.locator("#confirm[open]").get_by_role("button", name="Discard changes").click()
    page.wait_for_function("() => document.querySelector('#yaml').value.includes('agents:')")


def test_what_is_typed_before_an_answer_comes_stays(seeded: Site, visit: Any) -> None:
    """A preset is asked for when changes are discarded; its answer once replaced what had been typed meanwhile."""
    page = at_page(seeded, visit).page
    held: list[Any] = []

    def hold_the_preset(route: Any) -> None:
        """Others ask for a plan of the whole draft, or for its prediction, whenever they are through."""
        if set(route.request.post_data_json) <= {"template", "spec", "preset"}:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/v1/runs/plan", hold_the_preset)
    page.locator("#discard").click()
    written(page, "budget: [unfinished")
    page.locator("#yaml-errors li").first.wait_for()
    with page.expect_response("**/api/v1/runs/plan"):
        held[0].continue_()
    page.wait_for_timeout(500)
    assert page.locator("#yaml").input_value() == "budget: [unfinished"


def test_what_is_read_of_the_newest_text_counts_though_a_plan_came_between(seeded: Site, visit: Any) -> None:
    page = at_page(seeded, visit).page
    written(page, "budget: [unfinished")
    page.locator("#yaml-errors li").first.wait_for()
    held: list[Any] = []
    page.route("**/runs/new/text", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks its handlers
    with page.expect_request("**/runs/new/text"):
        page.locator("#yaml").fill(SPARSE)
    page.locator("#run-name").fill("another name")  # which is planned while the text is being read
    page.wait_for_timeout(800)
    for route in held:
        route.continue_()
    page.locator("#yaml-errors").wait_for(state="hidden")


def test_a_sparse_text_is_the_template_with_changes(seeded: Site, visit: Any) -> None:
    page = at_page(seeded, visit).page
    written(page, SPARSE)
    page.get_by_text("3 changes from the template").wait_for()
    page.locator("#start[aria-disabled=false]").wait_for()
    assert page.locator("#yaml-errors li").count() == 0
    assert "taken from the template: " in page.locator("#yaml-sparse").inner_text()
    page.locator("#keep").click()
    page.wait_for_url("**/runs/my-first-run-*")
    key = page.url.rpartition("/")[2]
    made = page.evaluate("key => fetch(`/api/v1/runs/${key}`).then((answer) => answer.json())", key)
    assert (made["template"], made["spec"]["budget"]["train_steps"], made["seed"]) == ("reference_game", 200, 7)
    assert set(made["spec"]["agents"]) == {"speaker", "listener"}


def test_one_malformed_number_hides_no_other_error(seeded: Site, visit: Any) -> None:
    page = at_page(seeded, visit).page
    page.locator("#fold-all").click()
    page.locator("[data-pointer='/budget/train_steps']").fill("many")
    page.locator("[data-error='/budget/train_steps']:visible").get_by_text("Write a number.").wait_for()
    page.locator("[data-pointer='/batch/tasks_per_step']").fill("-3")
    page.locator("[data-error='/batch/tasks_per_step']:visible").wait_for()
    assert page.locator("[data-error='/budget/train_steps']").is_visible()
    assert "2 errors" in page.locator("#error-count").inner_text()
    page.locator("[data-pointer='/batch/tasks_per_step']").fill("16")
    page.locator("[data-error='/batch/tasks_per_step']").wait_for(state="hidden")
    assert page.locator("#start").get_attribute("aria-disabled") == "true"


def test_long_values_wrap_in_the_list_of_changes(seeded: Site, visit: Any) -> None:
    page = at_page(seeded, visit).page
    written(page, SPARSE.replace("my first run", "n" * 64))
    page.get_by_text("3 changes from the template").wait_for()
    page.locator("#tab-changes").click()
    wide = page.evaluate(
        "() => { const box = document.querySelector('#pane-changes'); return box.scrollWidth - box.clientWidth; }"
    )
    assert wide <= 0


OWNERS = """() => {
    const edge = document.querySelector("#run-table").getBoundingClientRect().right;
    const cells = [...document.querySelectorAll("td.own")];
    for (const cell of cells) cell.firstElementChild.textContent = "margarethe.von-hohenfels";
    return cells.map((cell) => Math.round(cell.getBoundingClientRect().right - edge));
}"""


def test_owner_names_do_not_clip(seeded: Site, visit: Any) -> None:
    guest = visit(seeded, width=1440)
    guest.sign_in()
    guest.goto("/runs")
    assert max(guest.page.evaluate(OWNERS)) <= 0, "the column lies within the card"


def test_the_drawing_follows_the_text(seeded: Site, visit: Any) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs/new?template=chat_sums")
    page = guest.page
    page.locator("#start[aria-disabled=false]").wait_for()
    page.locator("#tab-yaml").click()
    page.wait_for_function("() => document.querySelector('#yaml').value.includes('train_steps')")
    seats = page.locator("#pane-yaml [data-box]")
    assert [one.get_attribute("data-box") for one in seats.all()] == ["solver", "reviser"]
    graph = "graph: {type: debate, debaters: [ann, bob], judge: carl}"
    page.locator("#yaml").fill("environment: {type: sums, " + graph + "}")
    page.locator("#pane-yaml [data-box=carl]").wait_for()
    assert seats.count() == 3
    page.locator("#yaml").fill("environment: {type: sums, graph: {type: nothing}}")
    page.locator("#yaml-errors li").first.wait_for()
    assert seats.count() == 3, "while the text is wrong the last drawing stays"
