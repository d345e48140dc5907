"""The sessions of a run that agent programs play: how many stand where, and how a program takes one."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import program_sessions
from flexmarl.controlplane.runs import queries as runs
from webui.views.base import page, show

PROGRAM = """\
session = requests.post("{sessions}", headers=token).json()             # take a session
client = OpenAI(base_url=session["base_url"], api_key=session["key"])    # its base URL and key
reply = client.chat.completions.create(model="{seat}", messages=...)     # your program, as it is
requests.post("{sessions}/" + session["id"] + "/finish", headers=token, json={{"reward": 1.0}})
"""
"""What a program has to say, beside what it says already. `token`: the header of a token with `runs:act`."""


@page()
def programs_part(request: HttpRequest, key: str) -> HttpResponse:
    """The card alone, re-read while the run moves."""
    found = runs.find_run(actor_of(request), key)
    return show(request, "webui/parts/programs.html", programs(request, found, runs.run_detail(found)))


def programs(request: HttpRequest, found: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts, a sentence that says what to do, and the lines of a program; nothing of other runs."""
    counts = program_sessions.standing(found)
    if counts is None:
        return {"sessions": None}
    if row["finished_at"]:
        sentence = "The run has ended: it opens no session any more."
    elif counts.open and not counts.taken:
        sentence = "Sessions wait for a program. Start yours, with these lines:"
    elif counts.taken:
        sentence = "Programs are at work. Each further one takes the next session:"
    else:
        sentence = "No session is open now: the run has not begun to play, or trains on what was played."
    address = request.build_absolute_uri(f"/api/v1/runs/{row['key']}/sessions")
    return {
        "run": row,
        "sessions": counts,
        "sentence": sentence,
        "program": "" if row["finished_at"] else PROGRAM.format(sessions=address, seat=row["agents"][0]["role"]),
    }
