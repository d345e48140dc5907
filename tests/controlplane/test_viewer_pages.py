"""A viewer is offered nothing that a viewer may not do."""

import re

import pytest
from django.test import Client

from flexmarl.contracts.status import RunStatus
from tests.support.controlplane import set_state
from tests.support.markup import markup
from tests.support.played import play

pytestmark = pytest.mark.django_db

FORBIDDEN = {
    "a new run": 'href="/runs/new',
    "an action on a run": "data-verb=",
    "a pin": "data-pin=",
    "an action on many runs": 'data-bulk="(?!compare)',
    "a start": "data-start-template=",
    "an edit of notes": 'data-open="edit-run"',
    "a new pool or node": r'href="\?(edit=new|add=node)',
}
PAGES = (
    *("/", "/runs", "/queue", "/cluster", "/simulations"),
    *("{run}", "{run}/metrics", "{run}/metrics/agents", "{run}/trajectories", "{run}/trajectories/playground"),
    *("{run}/performance", "{run}/performance/load", "{run}/performance/timeline", "{run}/performance/what-if"),
    *("{run}/logs", "{run}/config", "{run}/config/attempts", "{run}/checkpoints"),
)


@pytest.fixture
def run(editor, make_run):
    run = make_run(editor, RunStatus.RUNNING)
    play(run)
    set_state(run, step=3)
    return run


def offered(client: Client, run) -> dict[str, list[str]]:
    found = {}
    for page in PAGES:
        html = markup(client.get(page.format(run=f"/runs/{run.key}")))
        found[page] = [name for name, pattern in FORBIDDEN.items() if re.search(pattern, html)]
    return found


def test_a_viewer_sees_no_button_that_is_not_for_viewers(person, browser, run) -> None:
    viewer = Client()
    viewer.force_login(person("viewer"))
    assert {page: names for page, names in offered(viewer, run).items() if names} == {}
    editors = offered(browser, run)
    assert "a new run" in editors["/runs"]
    assert "an action on a run" in editors["{run}"]
    assert "an action on many runs" in editors["/runs"]
