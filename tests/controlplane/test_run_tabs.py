"""The pages of a run: seven tabs, the views of each, and addresses that people kept from before."""

import re

import pytest

from flexmarl.contracts.status import RunStatus
from tests.support.controlplane import PROGRAM
from tests.support.markup import markup
from webui.urls import MOVED

pytestmark = pytest.mark.django_db

TABS = ["Overview", "Metrics", "Trajectories", "Performance", "Logs", "Config", "Checkpoints"]
VIEWS = {
    "": (),
    "/metrics": ("Series", "Agents"),
    "/metrics/agents": ("Series", "Agents"),
    "/metrics/agents/speaker": ("Series", "Agents"),
    "/trajectories": ("Recorded", "Playground"),
    "/trajectories/playground": ("Recorded", "Playground"),
    "/performance": ("Pipeline", "Load", "Timeline", "What-if"),
    "/performance/load": ("Pipeline", "Load", "Timeline", "What-if"),
    "/performance/timeline": ("Pipeline", "Load", "Timeline", "What-if"),
    "/performance/what-if": ("Pipeline", "Load", "Timeline", "What-if"),
    "/logs": (),
    "/config": ("Settings", "Attempts"),
    "/config/attempts": ("Settings", "Attempts"),
    "/checkpoints": (),
}
"""Page of a run -> the views that it offers beside itself."""


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, RunStatus.RUNNING)


def links(html: str, name: str) -> list[tuple[str, str, bool]]:
    """The links of a navigation: address, word, whether it is the current one."""
    nav = re.search(rf'<nav class="{name}".*?</nav>', html, re.DOTALL)
    found = re.findall(r'<a href="([^"]*)"([^>]*)>([^<]*)</a>', nav[0]) if nav else []
    return [(href, word, "aria-current" in rest) for href, rest, word in found]


def test_every_page_of_a_run_stands_in_one_of_seven_tabs(browser, run) -> None:
    for path, views in VIEWS.items():
        html = markup(browser.get(f"/runs/{run.key}{path}"))
        tabs, beside = links(html, "tabs"), links(html, "views")
        assert [word for _, word, _ in tabs] == TABS, path
        [on] = [href for href, _, current in tabs if current]
        assert f"/runs/{run.key}{path}".startswith(on), path
        assert tuple(word for _, word, _ in beside) == views, path
        assert len([word for *_, word in beside if word]) == (1 if views else 0), path


def test_every_view_is_reached_from_a_tab(browser, run) -> None:
    start = links(markup(browser.get(f"/runs/{run.key}")), "tabs")
    pages = {href: markup(browser.get(href)) for href, *_ in start}
    reached = {href for html in pages.values() for href, *_ in links(html, "views")} | set(pages)
    assert reached == {f"/runs/{run.key}{path}" for path in VIEWS if not path.endswith("/speaker")}


def test_sessions_are_a_view_of_runs_that_agent_programs_play(browser, editor, make_run, run) -> None:
    program = make_run(editor, RunStatus.RUNNING, **PROGRAM)
    beside = links(markup(browser.get(f"/runs/{program.key}/trajectories/sessions")), "views")
    assert [(word, on) for _, word, on in beside] == [("Recorded", False), ("Sessions", True), ("Playground", False)]
    html = markup(browser.get(f"/runs/{run.key}/trajectories/sessions"))
    assert "No agent programs play this run" in html
    assert [word for _, word, _ in links(html, "views")] == ["Recorded", "Playground"]


def test_former_addresses_lead_on_with_their_query(browser, run) -> None:
    for pattern, place in MOVED.items():
        old, new = pattern.replace("<str:role>", "speaker"), place.replace("%(role)s", "speaker")
        answer = browser.get(f"/runs/{run.key}/{old}?window=60&q=a%20b")
        assert (answer.status_code, answer["Location"]) == (301, f"/runs/{run.key}/{new}?window=60&q=a%20b")
        assert browser.get(answer["Location"]).status_code == 200, new
