"""Sessions of agent programs: handed out to programs of users, and ended by what these report.

Invariants: who may act on a run may take its sessions and report on them. A key is made here, given once and stored
nowhere; the store has its digest. A session says who took it and who reported; the audit trail has the first session
of a run that an actor acts on, since a run has tens of thousands. A report is a reward within the run's range, an
error, or that the reward comes later, where the run waits for that; the first with a reward or an error stands.
"""

import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db import transaction

from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.program import ProgramEnvironment, StartedRunner
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import (
    Conflict,
    FieldError,
    InvalidState,
    NotFound,
    PermissionDenied,
    ValidationProblem,
)
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import queries, session_lists
from flexmarl.controlplane.runs.choices import allowed_now
from flexmarl.controlplane.runs.models import ProgramSessionRow, Run
from flexmarl.store.control import program_sessions
from flexmarl.store.control.program_sessions import SessionCounts

LATER = "reward_later"
"""Member of a report that brings no reward yet."""


class NoPrograms(Conflict):
    code = "no_programs"
    title = "The run plays no agent programs"


class StartsPrograms(Conflict):
    """Rollout workers start the programs of the run: nobody else takes its sessions."""

    code = "starts_programs"
    title = "The run starts its programs itself"


class NoOpenSession(Conflict):
    """Nothing waits for a program now; later something may."""

    code = "no_open_session"
    title = "No session is open"


class SessionOver(Conflict):
    code = "session_over"
    title = "The session takes no report"


@transaction.atomic
def take(actor: Actor, run: Run) -> dict[str, Any]:
    """Hand out the session that has waited longest.

    Raises PermissionDenied, NoPrograms, StartsPrograms, InvalidState or NoOpenSession.
    """
    environment = _playing(actor, run)
    status = RunStatus(run.state.status)
    if status in TERMINAL:
        allowed = [verb.value for verb in allowed_now(status, run.state.pending_verb)]
        raise InvalidState(f"{run.key} is {status}: it opens no session.", state=status.value, allowed_actions=allowed)
    key = f"fms_{secrets.token_urlsafe(32)}"
    session = program_sessions.take(store_connection(), run.no, sha256(key.encode()).hexdigest(), actor.name)
    if session is None:
        verb = {RunStatus.DRAFT: "start", RunStatus.PAUSED: "resume"}.get(status)
        step = f"Only its action {verb} makes it open one." if verb else "Ask again later."
        detail = f"{run.key} is {status}, and no session of it waits for a program. {step}"
        raise NoOpenSession(detail, headers={"Retry-After": "1"})
    taken = _one(run, environment, session)
    known = {"purpose": taken["purpose"], "task": taken["task"]}
    _record_first(actor, run, session, "session.take", known)
    return {**taken, "key": key}


def standing(run: Run) -> SessionCounts | None:
    """Count the sessions of a run by state; None of a run that plays no programs."""
    if run.spec["environment"]["type"] != "program":
        return None
    return program_sessions.counts(store_connection(), run.no)


def rows(run: Run, found: Sequence[ProgramSessionRow]) -> list[dict[str, Any]]:
    """Return sessions as JSON values. Raises NoPrograms."""
    return session_lists.session_rows(run, environment_of(run), found)


def read(run: Run, session: UUID) -> dict[str, Any]:
    """Return a session as it stands. Raises NoPrograms or NotFound."""
    return _one(run, environment_of(run), session)


def read_whole(run: Run, session: UUID) -> dict[str, Any]:
    """Return a session as it stands, with what a command made of its workspace. Raises NoPrograms or NotFound."""
    row = read(run, session)
    own = ProgramSessionRow.objects.filter(id=session).values("changes", "image").first()
    return {**row, **(own or {"changes": None, "image": ""})}


def of_episode(run: Run, episode: Sequence[int]) -> dict[str, Any] | None:
    """Return the session that became an episode (draw, member, attempt), where a rollout worker started its program."""
    key = dict(zip(("draw", "member", "attempt"), episode, strict=True))
    found = ProgramSessionRow.objects.filter(run_id=run.no, **key).values("id", "output", "changes", "image").last()
    return dict(found) if found and (found["output"] or found["changes"] or found["image"]) else None


def _one(run: Run, environment: ProgramEnvironment, session: UUID) -> dict[str, Any]:
    row = session_lists.sessions(run).filter(id=session).first()
    if row is None:
        raise NotFound(f"{run.key} has no session {session}.")
    return session_lists.session_rows(run, environment, [row])[0]


@transaction.atomic
def finish(actor: Actor, run: Run, session: UUID, said: Mapping[str, Any]) -> dict[str, Any]:
    """Take in what a program reports, or what is reported of it later.

    Raises PermissionDenied, NoPrograms, StartsPrograms, ValidationProblem, NotFound or SessionOver.
    """
    environment = _playing(actor, run)
    report = _checked(environment, said)
    before = read(run, session)
    if _took(actor, run, environment, session, report):
        if before["taken_by"] != actor.name:
            _record_first(actor, run, session, "session.finish", report)
        return read(run, session)
    if _stands(before, report):
        return before  # said twice, heard once
    why = before["reason"] or (f"no reward arrived by {due}" if (due := before["reward_deadline_at"]) else "")
    detail = f"The session is {before['state']}{why and f': {why}'}. Its report is not taken; take another session."
    raise SessionOver(detail, extra={"state": before["state"]})


def _took(actor: Actor, run: Run, environment: ProgramEnvironment, session: UUID, report: dict[str, Any]) -> bool:
    """Have a report written down; False where the session takes none like it."""
    conn = store_connection()
    if LATER in report:
        return program_sessions.await_reward(conn, run.no, session, environment.reward_timeout_s, actor.name)
    return program_sessions.report(conn, run.no, session, report, actor.name)


def _record_first(actor: Actor, run: Run, session: UUID, action: str, detail: Mapping[str, Any]) -> None:
    """Write an audit entry where the actor has acted on no other session of the run."""
    if not program_sessions.has_acted_before(store_connection(), run.no, session, actor.name):
        record(actor, action, *_named(run, session), project=run.project_id, **detail)


def _stands(session: Mapping[str, Any], report: dict[str, Any]) -> bool:
    """Tell whether a session has had the report that somebody repeats, and did not end for want of another."""
    if LATER in report:
        return session["state"] in ("awaiting_reward", "finished") and session["reward_deadline_at"] is not None
    return bool(session["state"] == "finished" and session["report"] == report)


def _playing(actor: Actor, run: Run) -> ProgramEnvironment:
    """Return the environment of a run on whose sessions a caller may act.

    Raises PermissionDenied, NoPrograms, or StartsPrograms.
    """
    if not queries.may_act(actor, run):
        needed = Scope.RUNS_ACT if run.owner_id == actor.user_id else Scope.RUNS_ACT_ANY
        raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [str(needed)]})
    environment = environment_of(run)
    if isinstance(environment.runner, StartedRunner):
        what = environment.runner.package or "a command"
        detail = f"Rollout workers start {what} for the sessions of {run.key}."
        raise StartsPrograms(f"{detail} Sessions are taken where environment.runner.type is remote.")
    return environment


def environment_of(run: Run) -> ProgramEnvironment:
    """Return the environment of a run that agent programs play. Raises NoPrograms."""
    environment: EnvironmentSpec = ExperimentSpec.model_validate(run.spec).environment
    if not isinstance(environment, ProgramEnvironment):
        raise NoPrograms(f"{run.key} plays {environment.type}; sessions are those of environment.type: program.")
    return environment


def _checked(environment: ProgramEnvironment, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report as it is kept. Raises ValidationProblem naming member, rule and legal value."""
    report = {name: value for name, value in said.items() if value not in (None, {}, "") and value is not False}
    if LATER in report:
        _may_come_later(environment, report)
        return report
    if ("error" in report) == bool(report.keys() & {"reward", "rewards"}):
        later = f"; or {LATER} where it comes later" if environment.reward_timeout_s else ""
        raise _wrong("reward", f"send reward, rewards or both; or error where there is no reward{later}", "required")
    if "error" not in report and (fault := environment.fault_of(report)) is not None:
        raise _wrong(fault.member, fault.rule, fault.code)
    return report


def _may_come_later(environment: ProgramEnvironment, report: Mapping[str, Any]) -> None:
    """Check a report that says that the reward comes later. Raises ValidationProblem."""
    if len(report) > 1:
        raise _wrong(LATER, "send it alone, and reward, rewards or error later", "not_with_others")
    if not environment.reward_timeout_s:
        rule = "the run waits for no reward (environment.reward_timeout_s is 0); send reward, rewards or error"
        raise _wrong(LATER, rule, "not_awaited")


def _wrong(member: str, rule: str, code: str) -> ValidationProblem:
    return ValidationProblem(f"{member}: {rule}.", errors=[FieldError(f"/{member}", code, f"{rule}.")])


def _named(run: Run, session: UUID) -> tuple[str, str, str]:
    """Return how the audit trail calls a session: its kind, id and name."""
    return "session", f"{run.id}/{session}", f"{run.key} {session}"
