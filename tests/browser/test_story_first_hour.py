"""A researcher's first hour, on the real system, from the first-visit page on.

Sign in, start the demo team with one press, watch its reward rise without loading the page again, read what the agents
said, pause, resume, stop.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visitor import Site
from tests.support.system import System

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder: Path = tmp_path_factory.mktemp("first-hour")
    folder.chmod(0o711)
    with System(folder / "home") as running:
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

    page.get_by_role("link", name="Trajectories", exact=True).click()
    page.locator("#conversation article").first.wait_for()

    page.get_by_role("button", name="Pause", exact=True).first.click()
    page.locator("#run-head .pill", has_text="Paused").first.wait_for(timeout=90_000)
    page.get_by_role("button", name="Resume", exact=True).first.click()
    page.locator("#run-head .pill", has_text="Running").first.wait_for(timeout=90_000)

    page.get_by_role("button", name="Stop", exact=True).click()
    page.locator("#confirm").get_by_role("button", name="Stop after step").click()
    page.locator("#run-head .pill", has_text="Completed").first.wait_for(timeout=90_000)
    guest.keep("first-hour-stopped")
    assert [text for text in guest.complaints if "404" not in text] == []
