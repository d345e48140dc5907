"""Checkpoints of runs made into models, which other runs name without knowing the run.

Invariants: a model made of a checkpoint belongs to the run's project, so whoever may read the one may read the other.
The right to read the run is looked at when it is asked for, and by `origin_grants` until a node has read the bytes.
"""

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.team import CheckpointModel
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.registry import actions
from flexmarl.controlplane.registry.models import LanguageModel
from flexmarl.controlplane.runs import checkpoints
from flexmarl.controlplane.runs.archives import CheckpointDamaged
from flexmarl.controlplane.runs.models import Checkpoint, Run


def promote(actor: Actor, run: Run, step: int, *, name: str, policy: str = "") -> LanguageModel:
    """Ask for a policy of a checkpoint as the next version of a model. Raises NotFound, CheckpointGone,
    CheckpointDamaged or ValidationProblem."""
    row = checkpoints.find(run, step)
    if row.state in checkpoints.GONE:
        raise checkpoints.gone(run, step)
    if row.state != "whole" or not row.node:
        detail = f"The checkpoint of {run.key} after step {step} is {row.state}; choose another one."
        raise CheckpointDamaged(detail, extra={"reason": row.state})
    policy = _policy_of(row, policy)
    own = ExperimentSpec.model_validate(run.spec).policies[policy].source
    source = CheckpointModel(run=run.key, step=step, policy=policy, source=own).model_dump(mode="json")
    project = run.project.name
    return actions.promote(actor, project=project, name=name, source=source, origin=(run.no, step))


def _policy_of(row: Checkpoint, named: str) -> str:
    there: list[str] = sorted(row.parts)
    if named in there:
        return named
    if not named and len(there) == 1:
        return there[0]
    detail = f"The checkpoint has no policy {named}." if named else "The checkpoint has several policies; name one."
    code = "unknown_policy" if named else "required"
    raise ValidationProblem(detail, errors=[FieldError("/policy", code, detail, f"Its policies: {', '.join(there)}.")])
