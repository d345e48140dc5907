"""Which models there are to talk to: an agent of a run, by name.

`<run key>/<agent>` is the newest version that an engine of the run serves, or the newest committed one when none does;
`<run key>/<agent>@<version>` is that one. An agent that somebody else's model plays has no weights here, and an
archived run is not talked to; both are refused by name.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict, FieldError, NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs.models import PolicyVersion, Run
from flexmarl.store.control import engines
from flexmarl.store.data.steps import newest_versions, version_of

MOST_LISTED = 200
"""Runs whose agents `/v1/models` lists, newest first; any other is there too when it is named."""
SHOWN_NAMES = 5
_NAME = re.compile(r"([^/@\s]+)/([^/@\s]+)(?:@(\d{1,9}))?")


class ModelNotFound(NotFound):
    code = "model_not_found"
    title = "Unknown model"

    def __init__(self, detail: str) -> None:
        hint = "GET /v1/models lists available models; the form is <run key>/<agent> or <run key>/<agent>@<version>."
        super().__init__(detail, errors=[FieldError("/model", self.code, detail, hint)])


class RunArchived(Conflict):
    code = "run_archived"
    title = "The run is archived"


@dataclass(frozen=True, slots=True)
class Model:
    """An agent with exact weights."""

    run: Run
    role: str
    policy: str
    version: int
    digest: str

    @property
    def name(self) -> str:
        """The name under which this version and no other answers."""
        return f"{self.newest_name}@{self.version}"

    @property
    def newest_name(self) -> str:
        """The name of whichever version is the newest."""
        return f"{self.run.key}/{self.role}"

    @property
    def agent(self) -> dict[str, Any]:
        """The agent as the run's specification has it."""
        found: dict[str, Any] = self.run.spec["agents"][self.role]
        return found


def find(actor: Actor, text: str, only: Collection[str] = ()) -> Model:
    """Return the model of a name. `only`: names of the models that may be asked, all if empty.

    Among these an agent's name alone is enough: by it a program that was trained knows its seats. Raises ModelNotFound,
    also for runs that the caller may not know of.
    """
    model = _found(actor, _whole_name(text, only))
    if only and not {model.name, model.newest_name} & set(only):
        raise ModelNotFound(f"The key may not ask {text}; allowed: {', '.join(sorted(only))}.")
    return model


def _whole_name(text: str, only: Collection[str]) -> str:
    """Return the name of a model of `only` that has an agent of this name. Raises ModelNotFound where several do."""
    if "/" in text or "@" in text:
        return text
    named = [name for name in sorted(only) if name.partition("/")[2].partition("@")[0] == text]
    if len(named) > 1:
        raise ModelNotFound(f"{text} may be one of {', '.join(named)}; name one of them, or let the key ask only one.")
    return named[0] if named else text


def _found(actor: Actor, text: str) -> Model:
    named = _NAME.fullmatch(text)
    if named is None:
        raise ModelNotFound(f"{text!r} is not a model name.")
    key, role, number = named.groups()
    try:
        run = runs.find_run(actor, key, Scope.MODELS_USE)
    except NotFound:
        some = ", ".join([str(row["id"]) for row in listed(actor)][:SHOWN_NAMES])
        known = f" Known models are {some}." if some else ""
        raise ModelNotFound(f"There is no run {key}, or you may not see it.{known}") from None
    if run.archived_at is not None:
        raise RunArchived(f"{key} is archived. Restore it to use its agents.")
    if role not in run.spec["agents"]:
        raise ModelNotFound(f"{key} has no agent {role}; it has {', '.join(sorted(run.spec['agents']))}.")
    if run.spec["agents"][role].get("external"):
        raise ModelNotFound(f"{role} of {key} uses an external model; send requests to that model.")
    return _of(run, role, None if number is None else int(number))


def _of(run: Run, role: str, number: int | None) -> Model:
    policy = run.spec["agents"][role]["policy"] or role
    newest = newest_versions(store_connection(), run.no).get(policy)
    if newest is None:
        raise ModelNotFound(f"{role} of {run.key} has no version yet: the run has not bound its policy {policy}.")
    if number is None:
        return Model(run, role, policy, *_newest_served(run, policy, (newest.version, newest.digest)))
    if number == newest.version:
        return Model(run, role, policy, newest.version, newest.digest)
    if number > newest.version:
        raise ModelNotFound(f"{role} of {run.key} has no version {number}; the newest is {newest.version}.")
    found = version_of(store_connection(), run.no, policy, number)
    return Model(run, role, policy, found.version, found.digest)


def _newest_served(run: Run, policy: str, otherwise: tuple[int, str]) -> tuple[int, str]:
    """Return number and digest of the newest version that engines of the run serve.

    While a run trains, its newest version is committed a moment before it is served, or much before when a cohort still
    pins the one before.
    """
    held = [route.holds[policy] for route in engines.routes(store_connection(), run.no) if policy in route.holds]
    return max(((pin.version, pin.digest) for pin in held), default=otherwise)


def listed(actor: Actor, only: Collection[str] = ()) -> list[dict[str, Any]]:
    """List the newest version of each agent of the newest runs in reach, as OpenAI's model objects.

    With `only`, the models of these names that can be asked now.
    """
    if only:
        return [described(name, model) for name in only if (model := _askable(actor, name))]
    found = list(runs.light(runs.runs(actor, Scope.MODELS_USE)).filter(archived_at=None)[:MOST_LISTED])
    newest = _newest({run.no for run in found})
    return [row for run in found for row in _rows(run, newest)]


def described(name: str, model: Model) -> dict[str, Any]:
    """Return a model under the name by which it was asked for."""
    return model_object(name, model.run, model.version, int(model.run.created_at.timestamp()))


def _askable(actor: Actor, name: str) -> Model | None:
    try:
        return _found(actor, name)
    except (ModelNotFound, RunArchived):
        return None


def _newest(numbers: Iterable[int]) -> dict[tuple[int, str], PolicyVersion]:
    rows = PolicyVersion.objects.filter(run_id__in=list(numbers)).order_by("run_id", "policy", "-version")
    return {(row.run_id, row.policy): row for row in rows.distinct("run_id", "policy")}


def _rows(run: Run, newest: dict[tuple[int, str], PolicyVersion]) -> list[dict[str, Any]]:
    """Describe the agents of a run that have weights."""
    rows = []
    for role, agent in run.spec["agents"].items():
        version = newest.get((run.no, agent["policy"] or role))
        if version is not None and not agent.get("external"):
            rows.append(model_object(f"{run.key}/{role}", run, version.version, int(version.at.timestamp())))
    return rows


def model_object(name: str, run: Run, version: int, created: int) -> dict[str, Any]:
    """Return a model as OpenAI describes one, with the version beside."""
    return {"id": name, "object": "model", "created": created, "owned_by": run.project_id, "version": version}
