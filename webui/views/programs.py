"""The sessions of a run that agent programs play: how a program takes one, where they stand, and what they came to."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.contracts.specification.program import StartedRunner
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.runs import program_sessions, session_lists
from flexmarl.controlplane.runs import queries as runs
from webui.formats import duration, moment, number
from webui.narrowing import chips, narrowed
from webui.views.base import is_part, page, show
from webui.views.run import run_frame
from webui.views.session_files import files

PROGRAM = """\
sessions = "{sessions}"
session = requests.post(sessions, headers=token).json()                  # take a session
client = OpenAI(base_url=session["base_url"], api_key=session["key"])    # its base URL and key
reply = client.chat.completions.create(model="{seat}", messages=...)     # your program, as it is
requests.post(sessions + "/" + session["id"] + "/finish", headers=token, json={{"reward": 1.0}})
"""
"""What a program has to say, beside what it says already. `token`: the header of a token with `runs:act`."""
STATES = {
    "open": ("Waiting", "hourglass", "muted", "It waits for a program."),
    "taken": ("In progress", "progress", "", "A program has its key."),
    "awaiting_reward": ("Awaits its reward", "clock", "", "Its program has ended; its reward is reported later."),
    "finished": ("Finished", "circle-check", "ok", "The program reported a reward, or why there is none."),
    "ended": ("Ended", "circle-x", "muted", "There is no reward."),
}
"""State -> its word, icon, tone, and what it means."""
LEFT = {
    "open": "for a program to take it",
    "taken": "of what its program may take between calls",
    "awaiting_reward": "for its reward to arrive",
}
"""State -> what a session has time left for."""
CHIPS = {"state": "State", "live": "Live", "purpose": "Purpose", "task": "Task"}
ORDERS = (("-opened_at", "Newest first"), ("opened_at", "Oldest first"), ("-calls", "Most calls first"),
          ("-tokens", "Most tokens first"))  # fmt: skip


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
    elif _started(found):
        sentence = "Rollout workers start the program, a process for each session."
    elif counts.open and not counts.taken:
        sentence = "Sessions wait for a program. Start yours, with these lines:"
    elif counts.taken:
        sentence = "Programs are at work. Each further one takes the next session:"
    else:
        sentence = "No session is open now: the run has not begun to play, or trains on what was played."
    return {"run": row, "sessions": counts, "program_sentence": sentence, "program": _lines(request, found, row)}


def _started(found: Any) -> bool:
    """Tell whether rollout workers start the programs of a run."""
    return isinstance(program_sessions.environment_of(found).runner, StartedRunner)


def _lines(request: HttpRequest, found: Any, row: Mapping[str, Any]) -> str:
    """Return the lines of a program that takes sessions; none for a run that has ended, or starts its programs."""
    if row["finished_at"] or _started(found):
        return ""
    address = request.build_absolute_uri(f"/api/v1/runs/{row['key']}/sessions")
    return PROGRAM.format(sessions=address, seat=row["agents"][0]["role"])


@page()
def sessions(request: HttpRequest, key: str) -> HttpResponse:
    """List the sessions of a run, narrowed by the address in the words of the API; another run is told of as such."""
    actor = actor_of(request)
    frame = _alone(actor, key) if is_part(request) else run_frame(request, key, "sessions")
    found, row = frame["found"], frame["run"]
    counts = program_sessions.standing(found)
    if counts is None:
        return show(
            request, "webui/run_sessions.html", {**frame, "run": row, "other": found.spec["environment"]["type"]}
        )
    context = {
        **frame,
        **_listed(request, found),
        "counts": [(name, getattr(counts, name), *words) for name, words in STATES.items()],
        "asked": {name: request.GET.get(name, "") for name in (*CHIPS, "ordering")},
        "chips": chips(request.GET, CHIPS, {state: words[0] for state, words in STATES.items()}),
        "states": [(name, words[0]) for name, words in STATES.items()],
        "orders": ORDERS,
        "program": _lines(request, found, row),
    }
    return show(request, "webui/parts/session_rows.html" if is_part(request) else "webui/run_sessions.html", context)


@page()
def session(request: HttpRequest, key: str, session_id: UUID) -> HttpResponse:
    """Show a session: how it stands, the end of its output, and what became of the files of its workspace."""
    frame = run_frame(request, key, "sessions")
    row = program_sessions.read_whole(frame["found"], session_id)
    shown = {**row, "look": STATES[row["state"]]}
    return show(request, "webui/run_session.html", {**frame, "session": shown, "files": files(row["changes"])})


def _alone(actor: Actor, key: str) -> dict[str, Any]:
    """Return what the list needs where the page around it is there."""
    found = runs.find_run(actor, key)
    return {"found": found, "run": runs.run_detail(found)}


def _listed(request: HttpRequest, found: Any) -> dict[str, Any]:
    """Read a page of the list, with what its rows became."""
    order = session_lists.ORDERINGS.get(request.GET.get("ordering", ""), session_lists.ORDERINGS["-opened_at"])
    cut = narrowed(request, session_lists.sessions(found), session_lists.FILTERS, lambda one: {"row": one}, order=order)
    rows = program_sessions.rows(found, [one["row"] for one in cut["rows"]])
    now = timezone.now()
    shown = [
        {**row, "look": STATES[row["state"]], "time": _time(row, now), "apart": _apart(row["rewards"])} for row in rows
    ]
    return {**cut, "rows": shown}


def _apart(rewards: Mapping[str, float]) -> str:
    """Return the rewards of the seats where they differ."""
    differ = len(set(rewards.values())) > 1
    return ", ".join(f"{seat} {number(value, 2)}" for seat, value in rewards.items()) if differ else ""


def _time(row: Mapping[str, Any], now: datetime) -> tuple[str, str]:
    """Return how long a session took, or what it has left, with what that means."""
    deadline, ended = moment(row["deadline_at"]), moment(row["ended_at"])
    if deadline is not None:
        left = max(0.0, (deadline - now).total_seconds())
        return f"{duration(left)} left" if left >= 1 else "due now", f"Left {LEFT[row['state']]}."
    began = moment(row["taken_at"]) or moment(row["opened_at"])
    if began is None or ended is None:
        return "", ""
    what = "From its start by a program to its end" if row["taken_at"] else "Not taken by a program"
    return duration((ended - began).total_seconds()), f"{what}."
