"""The specification of a cell: a model on a part of a suite, as a run that trains nothing.

Invariant: what differs between the runs of two models is the model alone, so tasks, seeds and sampling are the same.
"""

from typing import Any

from flexmarl.contracts.specification.team import CheckpointModel
from flexmarl.contracts.suites import EvaluatedModel, SuiteContent, SuitePart, roles_of
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, NotFound, ValidationProblem
from flexmarl.controlplane.evaluations.queries import converses
from flexmarl.controlplane.runs import queries as runs

POLICY = "model"
"""Name of the policy that takes every seat."""


def cell_spec(actor: Actor, content: SuiteContent, part: SuitePart, entry: EvaluatedModel, name: str) -> dict[str, Any]:
    """Return the specification of a cell. Raises ValidationProblem where the model's run has no policy for a seat."""
    seats = roles_of(part.environment)
    agents: dict[str, dict[str, Any]] = {
        seat: {"trainable": False, "sampling": content.sampling.model_dump(mode="json")} for seat in seats
    }
    policies: dict[str, Any] = {}
    if entry.external is not None:
        _in_messages(part)
        for agent in agents.values():
            agent["external"] = entry.external.model_dump(mode="json")
    elif isinstance(entry.model, CheckpointModel):
        for seat, agent in agents.items():
            policy, agent["policy"] = _of_checkpoint(actor, entry.model, seat)
            policies[agent["policy"]] = policy
    else:
        assert entry.model is not None
        usual = "fp32" if entry.model.type == "factory" else "bf16"
        policies[POLICY] = {"model": entry.model.model_dump(mode="json"), "precision": entry.precision or usual}
        for agent in agents.values():
            agent["policy"] = POLICY
    return {
        "name": name,
        "seed": content.seed,
        "environment": part.environment,
        **({} if part.reward is None else {"reward": part.reward}),
        "agents": agents,
        "policies": policies,
        "mechanisms": {"allocation": {"type": "colocated"}},
        "evaluation": {"tasks": part.tasks, "attempts": content.attempts, "greedy": content.greedy},
        "checkpoints": {"keep_best": 0},
        "budget": {"train_steps": 0},
    }


def _in_messages(part: SuitePart) -> None:
    """Refuse games of words for an external model alone: their words are those of a policy's vocabulary."""
    if not converses(part.environment):
        kind = part.environment["type"]
        detail = f"{kind} is played in words of a vocabulary, and an external model has none."
        hint = "Evaluate it on an environment of messages, such as sums or dataset."
        raise ValidationProblem(detail, errors=[FieldError("/external", "not_with_external", detail, hint)])


def _of_checkpoint(actor: Actor, model: CheckpointModel, seat: str) -> tuple[dict[str, Any], str]:
    """Return the policy that takes a seat, and its name: as its run trained it, with the weights of the checkpoint."""
    try:
        run = runs.find_run(actor, model.run)
    except NotFound as error:
        raise ValidationProblem(error.detail, errors=[FieldError("/model/run", "unknown_run", error.detail)]) from error
    policies = run.spec["policies"]
    own = run.spec["agents"].get(seat, {}).get("policy") or seat
    name = model.policy or (own if own in policies else next(iter(policies)) if len(policies) == 1 else "")
    if name not in policies:
        known = ", ".join(policies)
        detail = f"{run.key} has no policy {name or seat}" + ("" if name else f" for the seat {seat}") + "."
        refused = FieldError("/model/policy", "unknown_policy", detail, f"Policies of the run: {known}.")
        raise ValidationProblem(detail, errors=[refused])
    trained = policies[name]
    source = {"type": "checkpoint", "run": run.key, "step": model.step, "policy": name}
    kept = {key: trained[key] for key in ("precision", "tuning", "trainer") if key in trained}
    return {"model": source, **kept}, name
