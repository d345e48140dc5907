"""Sessions of agent programs as people read them: rows with what became of them, filters and orders of lists.

What a session came to while it was played is what its rollout worker said last; how much of it is trained is read from
the episode that it became.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, F, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Now

from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.contracts.wire import EpisodeStatus
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import ProgramSessionRow, Run
from flexmarl.store.control.program_sessions import LIVE, SILENT, SILENT_S
from flexmarl.store.reads.episodes import Key
from flexmarl.store.reads.session_episodes import SessionEpisode, episodes_of

STATES = (*LIVE, "finished", "ended")
PURPOSES = ("training", "evaluation")
ORDERINGS = {
    "-opened_at": "-opened_at,-id",
    "opened_at": "opened_at,id",
    "-calls": "-calls,-opened_at,-id",
    "calls": "calls,-opened_at,-id",
    "-tokens": "-tokens,-opened_at,-id",
    "tokens": "tokens,-opened_at,-id",
}
FILTERS = (
    Parameter("state", "State; may be repeated.", lookup="standing", choices=STATES, many=True),
    Parameter(
        "live",
        "yes: only sessions that wait, are played or await their reward; no: only those that are over.",
        choices=("yes", "no"),
        condition=lambda word: Q(standing__in=LIVE) if word == "yes" else ~Q(standing__in=LIVE),
    ),
    Parameter(
        "purpose",
        "What the episode is played for.",
        choices=PURPOSES,
        condition=lambda word: Q(held_out=word == "evaluation"),
    ),
    Parameter("task", "Number of the task.", "integer", lookup="task"),
)


def sessions(run: Run) -> QuerySet[ProgramSessionRow]:
    """Return the sessions of a run as they stand now: one whose worker fell silent has ended."""
    silent = Q(state__in=LIVE, seen_at__lt=Now() - timedelta(seconds=SILENT_S))
    now = {
        "standing": Case(When(silent, then=Value("ended")), default=F("state"), output_field=TextField()),
        "why": Case(When(silent, then=Value(SILENT)), default=F("reason"), output_field=TextField()),
        "over_at": Case(When(silent, then=F("seen_at")), default=F("ended_at")),
    }
    return ProgramSessionRow.objects.filter(run_id=run.no).annotate(**now).defer("changes")


def session_rows(run: Run, environment: ProgramEnvironment, found: Sequence[ProgramSessionRow]) -> list[dict[str, Any]]:
    """Return sessions as JSON values, with the trajectories that they became."""
    over = [_key(row) for row in found if row.standing not in LIVE]
    episodes = episodes_of(store_connection(), run.no, over)
    return [_row(run, environment, row, episodes.get(_key(row))) for row in found]


def _key(row: ProgramSessionRow) -> Key:
    return row.draw, row.member, row.attempt


def _row(
    run: Run, environment: ProgramEnvironment, row: ProgramSessionRow, episode: SessionEpisode | None
) -> dict[str, Any]:
    deadline = _deadline(row, environment)
    # A finished episode has rows, unless these were retired.
    kept = episode if episode and (episode.chains or episode.status != EpisodeStatus.FINISHED) else None
    team, own = environment.rewards_of(row.report) if _rewarded(row) else (None, {})
    return {
        "id": str(row.id),
        "state": row.standing,
        "reason": row.why,
        "output": row.output,
        "purpose": PURPOSES[row.held_out],
        "task": row.task,
        "seats": list(environment.seats),
        "base_url": f"{row.base_url}/v1",
        "run_timeout_s": environment.run_timeout_s,
        "reward_timeout_s": environment.reward_timeout_s,
        "max_calls": environment.max_calls,
        "report": row.report,
        "taken_by": row.taken_by,
        "reported_by": row.reported_by,
        "opened_at": rfc3339(row.opened_at),
        "taken_at": rfc3339(row.taken_at),
        "ended_at": rfc3339(row.over_at),
        "reward_deadline_at": rfc3339(row.reward_deadline_at),
        "deadline_at": rfc3339(deadline),
        "calls": row.calls,
        "chains": None if kept is None else kept.chains,
        "tokens": {
            "sampled": row.tokens,
            "delivered": None if kept is None or row.held_out else kept.delivered,
        },
        "reward": team,
        "rewards": own,
        "trajectory": None if episode is None else _trajectory(run, row, episode),
        "url": f"/api/v1/runs/{run.id}/sessions/{row.id}",
    }


def _rewarded(row: ProgramSessionRow) -> bool:
    return row.standing == "finished" and bool(row.report.keys() & {"reward", "rewards"})


def _deadline(row: ProgramSessionRow, environment: ProgramEnvironment) -> datetime | None:
    """Return when a session ends unless something happens in it; None of one that is over."""
    if row.standing == "open":
        return row.opened_at + timedelta(seconds=environment.boot_timeout_s)
    if row.standing == "awaiting_reward":
        return row.reward_deadline_at
    if row.standing != "taken" or row.taken_at is None:
        return None
    if row.left_s is None or row.seen_at < row.taken_at:
        return row.taken_at + timedelta(seconds=environment.run_timeout_s)
    return row.seen_at + timedelta(seconds=row.left_s)


def _trajectory(run: Run, row: ProgramSessionRow, episode: SessionEpisode) -> dict[str, str]:
    identity = "-".join(map(str, _key(row)))
    return {
        "id": identity,
        "status": episode.status,
        "url": f"/api/v1/runs/{run.id}/trajectories/{identity}",
        "web_url": f"/runs/{run.key}/trajectories/{identity}",
    }
