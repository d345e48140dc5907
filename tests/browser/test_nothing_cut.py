"""Nothing is cut or sticks out: heads of charts, labels in drawings, names, numbers of lines."""

from typing import Any

import pytest

from tests.browser.conftest import program
from tests.browser.test_matrix import EXAMPLES, VARIANTS, address
from tests.browser.visitor import Site, Visitor
from tests.support.forms import form

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

CHARTED = ["run", "run-by-version", "metrics-open", "agent", "pipeline", "load", "load-ended", "simulation"]
STICKS_OUT = """() => {
    const out = [];
    const shown = (node) => node.getClientRects().length > 0;
    const right = (node) => node.getBoundingClientRect().right;
    for (const head of document.querySelectorAll(".card > .ch"))
        for (const part of head.children)
            if (shown(part) && right(part) > right(head) - 4)
                out.push(`${head.textContent.trim().slice(0, 40)}: ${part.className}`);
    for (const text of document.querySelectorAll("svg.mini text")) {
        const box = text.ownerSVGElement.getBoundingClientRect(), own = text.getBoundingClientRect();
        if (shown(text) && (own.left < box.left - 1 || own.right > box.right + 1))
            out.push(`label ${text.textContent}`);
    }
    return out;
}"""


@pytest.mark.parametrize("width", form(short=(1024,), full=(1440, 1280, 1024)))
def test_heads_and_labels_of_charts_stay_inside(seeded: Site, visit: Any, width: int) -> None:
    guest = visit(seeded, width=width)
    guest.sign_in()
    found = {}
    for name in CHARTED:
        guest.goto(address(seeded, {**EXAMPLES, **VARIANTS}[name]))
        guest.settle()
        found[name] = guest.page.evaluate(STICKS_OUT)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def new_run(seeded: Site, visit: Any) -> Visitor:
    guest: Visitor = visit(seeded)
    guest.sign_in()
    guest.goto("/runs/new?template=reference_game")
    guest.page.locator("#start[aria-disabled=false]").wait_for()
    guest.page.locator("#tab-yaml").click()
    guest.page.wait_for_function("() => document.querySelector('#yaml').value.includes('train_steps')")
    return guest


HEIGHTS = "() => [...document.querySelectorAll('#yaml-lines .ln')].map((line) => line.offsetTop)"


def test_numbers_of_lines_stand_beside_their_lines(seeded: Site, visit: Any) -> None:
    page = new_run(seeded, visit).page
    page.locator("#yaml").fill("name: x\nbudget: {train_steps: 200}\nbatch: {tasks_per_step: -4}\nseed: 7\n")
    page.locator("#yaml-lines .ln.err").wait_for()
    assert page.locator("#yaml-lines .ln.chg").count() >= 2
    assert page.evaluate(HEIGHTS) == [8 + 20 * line for line in range(5)], "as high as the lines of the text area"


def test_the_name_in_the_text_is_the_name_shown(seeded: Site, visit: Any) -> None:
    page = new_run(seeded, visit).page
    page.locator("#yaml").fill("name: my first run\nseed: 7\n")
    page.wait_for_function("() => document.querySelector('#run-name').placeholder === 'my first run'")


def test_the_form_waits_while_the_text_cannot_be_read(seeded: Site, visit: Any) -> None:
    page = new_run(seeded, visit).page
    page.locator("#yaml").fill("budget: [unfinished")
    page.locator("#yaml-errors li").first.wait_for()
    page.locator("#tab-form").click()
    assert page.locator("#spec-form").evaluate("(form) => form.inert"), "a change here would be lost"
    page.locator("#tab-yaml").click()
    page.locator("#yaml").fill("budget: {train_steps: 200}")
    page.wait_for_function("() => !document.querySelector('#spec-form').inert")


CUT_VALUES = """() => [...document.querySelectorAll(".agrow input.tn")].filter((input) => input.value
    && input.scrollWidth > input.clientWidth).map((input) => `${input.dataset.pointer}: ${input.value}`)"""


@pytest.mark.parametrize("width", [1280, 1440])
def test_figures_of_agents_are_whole_and_sizes_follow(seeded: Site, visit: Any, width: int) -> None:
    guest = visit(seeded, width=width)
    guest.sign_in()
    guest.goto("/runs/new?template=chat_sums")
    page = guest.page
    page.locator("#start[aria-disabled=false]").wait_for()
    assert page.evaluate(CUT_VALUES) == []
    sizes = [page.locator(f"[data-pointer='/batch/{name}']") for name in ("micro_batch_groups", "rollout_groups")]
    for tasks, followed in (("3", ["3", "3"]), ("12", ["4", "8"])):
        page.locator("[data-pointer='/batch/tasks_per_step']").fill(tasks)
        assert [one.input_value() for one in sizes] == followed


SHORT_KEY = """(key) => {
    const title = document.querySelector("#run-line1 > h1");
    title.textContent = key;
    const line = document.querySelector("#run-line1");
    const tag = document.createElement("a");
    tag.className = "tag";
    tag.textContent = "fork of demo-reference-game-bxdk, step 21";
    line.querySelector(".acts").before(tag);
    return [title, tag, line].map((part) => part.scrollWidth - part.clientWidth);
}"""


def test_the_header_of_a_fork_says_its_key_its_origin_and_the_step(seeded: Site, visit: Any) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[1]}")
    assert guest.page.evaluate(SHORT_KEY, "demo-reference-game-wzdn") == [0, 0, 0]


NARROW = """() => [...document.querySelectorAll("td.anywhere")].filter((cell) => cell.getClientRects().length
    && cell.textContent.trim().length > 12 && cell.getBoundingClientRect().width < 96)
    .map((cell) => cell.textContent.trim().slice(0, 40))"""


def test_names_are_not_written_one_letter_below_the_other(seeded: Site, visit: Any) -> None:
    program("measure_storage", {**seeded.environment, "RUNS": " ".join(seeded.keys)})
    guest = visit(seeded, width=390)
    guest.sign_in()
    found = {}
    for name in ["storage", "config", "checkpoints", "pipeline", "attempts", "simulation", "users", "projects"]:
        guest.goto(address(seeded, EXAMPLES[name]))
        guest.settle()
        found[name] = guest.page.evaluate(NARROW)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
