"""The tasks of a run: what its task sampler believes of each."""

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.telemetry import task_beliefs
from webui.views.base import page, show
from webui.views.run import run_frame

PLAYED = {"": ("All", None), "yes": ("Played", True), "no": ("Not played yet", False)}
"""In the address -> what the filter is called, and which tasks it shows."""


@page()
def tasks(request: HttpRequest, key: str) -> HttpResponse:
    """List the tasks that the sampler chooses from; a cursor of another list leads to the first page."""
    frame = run_frame(request, key, "tasks")
    played = request.GET.get("played", "")
    played = played if played in PLAYED else ""
    cursor = request.GET.get("cursor") or None
    try:
        found = task_beliefs.page(frame["found"], played=PLAYED[played][1], cursor=cursor)
    except task_beliefs.OtherSnapshot as other:
        return show(request, "webui/run_tasks.html", {**frame, "unreadable": str(other)})
    except ProblemError:
        cursor, found = None, task_beliefs.page(frame["found"], played=PLAYED[played][1])
    following = urlencode({"played": played, "cursor": found.next}) if found.next else ""
    context = {
        "beliefs": found,
        "filters": [(name, words) for name, (words, _) in PLAYED.items()],
        "asked": played,
        "further": cursor is not None,
        "next_url": following and f"?{following}",
    }
    return show(request, "webui/run_tasks.html", {**frame, **context})
