"""Sessions of agent programs: handed out to programs of users, and ended by what these report.

Invariants: who may act on a run may take its sessions and report on them. A key is made here, given once and stored
nowhere; the store has its digest. A report is a reward within the run's range, or an error, and the first stands.
"""

import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db import transaction

from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.program import ProcessRunner, ProgramEnvironment
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
    session = program_sessions.take(store_connection(), run.no, sha256(key.encode()).hexdigest())
    if session is None:
        detail = f"{run.key} is {status}, and no session of it waits for a program. Ask again later."
        raise NoOpenSession(detail, headers={"Retry-After": "1"})
    taken = _one(run, environment, session)
    known = {"purpose": taken["purpose"], "task": taken["task"]}
    record(actor, "session.take", *_named(run, session), project=run.project_id, **known)
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


def _one(run: Run, environment: ProgramEnvironment, session: UUID) -> dict[str, Any]:
    row = session_lists.sessions(run).filter(id=session).first()
    if row is None:
        raise NotFound(f"{run.key} has no session {session}.")
    return session_lists.session_rows(run, environment, [row])[0]


@transaction.atomic
def finish(actor: Actor, run: Run, session: UUID, said: Mapping[str, Any]) -> dict[str, Any]:
    """Take in what a program reports.

    Raises PermissionDenied, NoPrograms, StartsPrograms, ValidationProblem, NotFound or SessionOver.
    """
    report = _checked(_playing(actor, run), said)
    before = read(run, session)
    if program_sessions.report(store_connection(), run.no, session, report):
        record(actor, "session.finish", *_named(run, session), project=run.project_id, **report)
        return read(run, session)
    if before["state"] == "finished" and before["report"] == report:
        return before  # said twice, heard once
    reason = f": {before['reason']}" if before["reason"] else ""
    detail = f"The session is {before['state']}{reason}. Its report is not taken; take another session."
    raise SessionOver(detail, extra={"state": before["state"]})


def _playing(actor: Actor, run: Run) -> ProgramEnvironment:
    """Return the environment of a run on whose sessions a caller may act.

    Raises PermissionDenied, NoPrograms, or StartsPrograms.
    """
    if not queries.may_act(actor, run):
        needed = Scope.RUNS_ACT if run.owner_id == actor.user_id else Scope.RUNS_ACT_ANY
        raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [str(needed)]})
    environment = environment_of(run)
    if isinstance(environment.runner, ProcessRunner):
        detail = f"Rollout workers start {environment.runner.package} for the sessions of {run.key}."
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
    report = {name: value for name, value in said.items() if value not in (None, {}, "")}
    if ("error" in report) == bool(report.keys() & {"reward", "rewards"}):
        raise _wrong("reward", "send reward, rewards or both; or error where there is no reward", "required")
    if "error" not in report and (fault := environment.fault_of(report)) is not None:
        raise _wrong(fault.member, fault.rule, fault.code)
    return report


def _wrong(member: str, rule: str, code: str) -> ValidationProblem:
    return ValidationProblem(f"{member}: {rule}.", errors=[FieldError(f"/{member}", code, f"{rule}.")])


def _named(run: Run, session: UUID) -> tuple[str, str, str]:
    """Return how the audit trail calls a session: its kind, id and name."""
    return "session", f"{run.id}/{session}", f"{run.key} {session}"
