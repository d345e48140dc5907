"""A new run that begins with another run's weights: from a checkpoint, or from its newest vector.

Invariants: the new run, where its policies come from, and the refusal of what does not fit are one transaction. What is
named is held for the new run from that moment until it is bound: a checkpoint by its row, the newest vector by being
claimed on its nodes, which is why a run that still trains has none to give.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from django.db import transaction

from flexmarl.contracts.fork_rules import fork_rules
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, InvalidState, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments.plans import Draft, as_field_error
from flexmarl.controlplane.runs import actions, checkpoints
from flexmarl.controlplane.runs.choices import allowed_now
from flexmarl.controlplane.runs.model_sources import without_checkpoints
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.control import checkpoint_rows
from flexmarl.store.data import lineage, steps
from flexmarl.store.data.lineage import VersionOrigin

Take = Literal["weights", "training_state"]


@dataclass(frozen=True, slots=True)
class ForkSource:
    """What a fork begins with."""

    checkpoint: int | None
    """Step of the checkpoint; None: the newest vector."""
    take: Take = "weights"


@transaction.atomic
def fork(actor: Actor, run: Run, draft: Draft, source: ForkSource, **options: Any) -> Run:
    """Make a run of a run's specification with some of it changed, whose policies begin with that run's weights.

    Raises ValidationProblem where the change does not fit the weights, CheckpointGone, or InvalidState.
    """
    found = _of_checkpoint(run, source.checkpoint) if source.checkpoint is not None else _newest(run)
    made = actions.clone(actor, run, draft, spec=without_checkpoints(run.spec), **options)
    parent, spec = ExperimentSpec.model_validate(run.spec), ExperimentSpec.model_validate(made.spec)
    taken = sorted(spec.policies.keys() & found.keys())
    if not taken:
        detail = f"No policy of the fork has weights in {run.key}, which has: {', '.join(sorted(found))}."
        hint = "Keep one of them."
        raise ValidationProblem(detail, errors=[FieldError("/policies", "required", detail, hint, "spec")])
    problems = list(fork_rules(parent, spec, taken, source.take == "training_state"))
    if problems:
        errors = [as_field_error(problem) for problem in problems]
        raise ValidationProblem("The weights do not fit: " + errors[0].detail, errors=errors)
    origins = [found[one] if _keeps(spec, source, one) else replace(found[one], state="") for one in taken]
    _check_states(spec, source, origins)
    lineage.put(store_connection(), made.no, origins)
    asked: dict[str, Any] = {"from": run.key, "checkpoint": source.checkpoint, "take": source.take}
    record(actor, "run.fork", "run", made.id, made.key, project=made.project_id, **asked)
    return made


def _keeps(spec: ExperimentSpec, source: ForkSource, policy: str) -> bool:
    return source.take == "training_state" and policy in spec.trainable_policies()


def _of_checkpoint(run: Run, step: int) -> dict[str, VersionOrigin]:
    row = checkpoints.find(run, step)
    if not checkpoint_rows.read_on(store_connection(), run.no, step):
        raise checkpoints.gone(run, step)
    if not row.parts:
        detail = f"The checkpoint after step {step} was written in an older format."
        hint = "Use a newer checkpoint, or send checkpoint: newest."
        raise ValidationProblem(detail, errors=[FieldError("/checkpoint", "no_contents", detail, hint)])
    return {
        policy: VersionOrigin(policy, run.no, policy, part["version"], step, True, part["digest"], part["state"])
        for policy, part in row.parts.items()
    }


def _newest(run: Run) -> dict[str, VersionOrigin]:
    status = RunStatus(run.state.status)
    if status not in TERMINAL and status is not RunStatus.PAUSED:
        detail = f"{run.key} is {status}: its newest vector changes. Use a checkpoint, or pause the run first."
        allowed = [str(verb) for verb in allowed_now(status, run.state.pending_verb)]
        raise InvalidState(detail, state=status.value, allowed_actions=allowed)
    found = steps.newest_versions(store_connection(), run.no)
    if not found:
        detail = f"{run.key} has no version yet: no policy was bound."
        raise ValidationProblem(detail, errors=[FieldError("/checkpoint", "no_version", detail, "Clone it instead.")])
    return {
        policy: VersionOrigin(
            policy, run.no, policy, version.version, run.state.step, False, version.digest, version.state
        )
        for policy, version in found.items()
    }


def _check_states(spec: ExperimentSpec, source: ForkSource, origins: list[VersionOrigin]) -> None:
    """Refuse to take over a training state that was never stored, rather than to begin with a fresh optimizer."""
    if source.take != "training_state":
        return
    lacking = [one.policy for one in origins if not one.state and one.policy in spec.trainable_policies()]
    if lacking:
        detail = f"No training state is stored with this vector for {', '.join(lacking)}."
        hint = "Send take: weights, or use a checkpoint whose policies have a training_state."
        raise ValidationProblem(detail, errors=[FieldError("/take", "no_training_state", detail, hint)])
