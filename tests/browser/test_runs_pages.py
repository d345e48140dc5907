"""Home, the list of runs and New run in a browser: looks, keys, selection, verbs on many."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

FINISHED, RUNNING, OTHER, PAUSED, FAILED, QUEUED = range(6)
PAGES = {
    "runs": "/runs",
    "runs-filtered": "/runs?status=running&status=failed&ordering=-reward&config.batch.tasks_per_step__gte=1",
    "runs-empty": "/runs?q=nothing-like-this",
    "runs-wrong-filter": "/runs?status=asleep",
    "home": "/",
    "new-run": "/runs/new?template=reference_game",
    "new-run-choose": "/runs/new",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_pages_of_many_runs_are_accessible_and_fit(
    seeded: Any, visit: Callable[..., Any], theme: str, width: int
) -> None:
    guest = visit(seeded, theme=theme, width=width)
    guest.sign_in()
    found: dict[str, Any] = {}
    for name, path in PAGES.items():
        guest.goto(path)
        guest.settle()
        guest.keep(f"list-{name}-{width}-{theme}")
        found[name] = (guest.violations(), guest.sideways())
    assert {name: result for name, result in found.items() if result[0] or result[1] > 0} == {}
    assert guest.complaints == []
