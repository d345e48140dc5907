"""A researcher's first hour, on the real system: from the first-visit page to a second run with one change.

Sign in, start the demo team with one press, watch its reward rise without loading the page again, read what the agents
said in a pause, clone with one change, resume, stop, compare the two configurations. Then the same without a mouse.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flexmarl.launcher.processes import wait_until
from tests.browser.visitor import Site
from tests.support.system import System

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]


@pytest.fixture  # a second try begins anew: no run of the first holds its devices
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder: Path = tmp_path_factory.mktemp("first-hour")
    folder.chmod(0o711)
    with System(folder / "home") as running:
        assert wait_until(running.api().devices_free, 60), "the node has registered its devices"
        yield running


def rewards_seen(page: Any) -> float:
    text = page.locator("#tiles .v").first.inner_text().replace("−", "-")
    try:
        return float(text)
    except ValueError:
        return float("-inf")


def test_the_first_hour(system: System, visit: Any) -> None:
    guest = visit(Site(system.url, "admin", system.password))
    page = guest.page
    guest.sign_in()
    assert page.get_by_role("heading", level=1).inner_text() == "Train a team of agents"
    page.locator("[data-start-template]").first.click()
    page.wait_for_url("**/runs/*")
    page.locator("#run-head .pill", has_text="Running").first.wait_for(timeout=90_000)
    address = page.url
    page.wait_for_function(
        "() => Number.isFinite(parseFloat(document.querySelector('#tiles .v')?.textContent))", timeout=120_000
    )
    first = rewards_seen(page)
    page.wait_for_function(
        "first => parseFloat(document.querySelector('#tiles .v').textContent) > first + 0.1", arg=first, timeout=240_000
    )
    assert page.url == address, "the page follows the run without being loaded again"

    # Reading takes its time, and the demo ends by itself when the team has learnt: it rests meanwhile,
    # and keeps its devices.
    page.get_by_role("button", name="Pause", exact=True).first.click()
    page.locator("#run-head .pill", has_text="Paused").first.wait_for(timeout=90_000)
    page.get_by_role("link", name="Trajectories", exact=True).click()
    page.locator("#conversation article").first.wait_for()

    key = address.rpartition("/")[2]
    guest.goto(f"/runs/{key}")
    page.locator("[data-menu=verbs]").click()
    page.locator("#menu-verbs").get_by_role("menuitem", name="New run from this one").click()
    page.wait_for_url("**/runs/new?from=*")
    page.locator("#start[aria-disabled=false]").wait_for()
    assert page.locator("#start").inner_text() == "Queue run", "the paused run keeps its devices"
    page.locator("#run-name").fill("First hour, shorter")
    page.get_by_label("Train steps").fill("40")
    page.locator("#start").click()  # at once: the plan of the change is not back yet
    page.wait_for_url("**/runs/first-hour-shorter-*")
    second = page.url.rpartition("/")[2]
    page.locator("#run-head .pill", has_text="Queued").first.wait_for()

    guest.goto(f"/runs/{key}")
    page.get_by_role("button", name="Resume", exact=True).first.click()
    page.locator("#run-head .pill", has_text="Running").first.wait_for(timeout=90_000)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.locator("#confirm").get_by_role("button", name="Stop after step").click()
    page.locator("#run-head .pill", has_text="Stopped").first.wait_for(timeout=90_000)
    guest.keep("first-hour-stopped")

    guest.goto(f"/runs/{second}/config?against={key}")
    assert "train_steps" in page.locator("main").inner_text()
    guest.keep("first-hour-compared")
    system.api().act(second, "kill")
    assert [text for text in guest.complaints if "404" not in text] == []


@pytest.mark.full
def test_the_same_without_a_mouse(system: System, visit: Any) -> None:
    guest = visit(Site(system.url, "admin", system.password))
    page, keys = guest.page, guest.page.keyboard
    page.goto(f"{system.url}/sign-in")
    page.locator("input[name=username]:focus").wait_for()
    keys.type("admin")
    keys.press("Tab")
    keys.type(system.password)
    keys.press("Enter")
    page.wait_for_url(f"{system.url}/")

    keys.type("gn")
    page.wait_for_url("**/runs/new*")
    if not page.locator("#start").count():
        to(page, "main a[href*='template=']")
        keys.press("Enter")
    page.locator("#start[aria-disabled=false]").wait_for()
    to(page, "#run-name")
    keys.press("Control+a")
    keys.type("By keyboard")
    # Whoever walks by Tab is slower than a team that learns: this run ends when it is told to.
    to(page, "[data-pointer='/budget/target/value']")
    keys.press("Control+a")
    keys.press("Delete")
    page.wait_for_function("() => /^1 change/.test(document.querySelector('#change-count').textContent)")
    page.locator("#start[aria-disabled=false]").wait_for()
    to(page, "#start", back=True)
    keys.press("Enter")
    page.wait_for_url("**/runs/by-keyboard-*")
    page.locator("#run-head .pill", has_text="Running").first.wait_for(timeout=180_000)
    page.wait_for_function(
        "() => Number.isFinite(parseFloat(document.querySelector('#tiles .v')?.textContent))", timeout=180_000
    )

    to(page, "#run-head [data-verb=stop]")
    keys.press("Enter")
    page.locator("#confirm[open]").wait_for()
    to(page, "#confirm [data-yes]")
    keys.press("Enter")
    page.locator("#run-head .pill", has_text="Stopped").first.wait_for(timeout=120_000)
    assert [text for text in guest.complaints if "404" not in text] == []


def to(page: Any, selector: str, *, back: bool = False, most: int = 60) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(most):
        if page.evaluate("selector => Boolean(document.activeElement?.matches(selector))", selector):
            return
        page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"{selector} is not reached by Tab")
