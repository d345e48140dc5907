"""Cross-field rules of a specification: what single fields cannot know of each other."""

from collections.abc import Iterator

from flexmarl.contracts.adapter_rules import adapter_rules
from flexmarl.contracts.allocation_rules import allocation_rules, allocation_warnings
from flexmarl.contracts.conversation_rules import conversation_rules
from flexmarl.contracts.diffusion_rules import diffusion_rules
from flexmarl.contracts.dispatch_rules import dispatch_rules
from flexmarl.contracts.engine_rules import broken_engine_rules
from flexmarl.contracts.external_rules import external_rules
from flexmarl.contracts.lag_rules import broken_lag_rules
from flexmarl.contracts.learning_rules import learning_rules
from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.replay_rules import replay_rules
from flexmarl.contracts.sampling_rules import sampling_rules
from flexmarl.contracts.serving_rules import serving_rules
from flexmarl.contracts.sharing_rules import sharing_rules
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel, PolicySpec
from flexmarl.contracts.training_rules import training_rules
from flexmarl.contracts.turn_rules import turn_rules

TARGET_METRICS = ("eval/solved", "eval/team_score")


def broken_rules(spec: ExperimentSpec) -> list[Problem]:
    """Return every broken rule of a specification whose single fields are legal.

    A record that several policies share is refused once: the same field, rule and way out is one refusal.
    """
    facts = (
        broken_lag_rules,
        dispatch_rules,
        training_rules,
        allocation_rules,
        external_rules,
        broken_engine_rules,
        serving_rules,
        adapter_rules,
        diffusion_rules,
        conversation_rules,
        sampling_rules,
        replay_rules,
        sharing_rules,
        turn_rules,
    )
    own = (_roles, _policies, _batch, learning_rules, *facts, _evaluation, _budget)
    found: dict[tuple[str, str, str], Problem] = {}
    for rules in own:
        for problem in rules(spec):
            found.setdefault((problem.pointer, problem.code, problem.hint), problem)
    return list(found.values())


def warnings(spec: ExperimentSpec) -> list[Problem]:
    """Return what is legal and probably not meant, or costs more than it seems."""
    found = []
    batch = spec.batch
    if batch.tasks_per_step % batch.micro_batch_groups:
        found.append(
            Problem(
                pointer="/batch/micro_batch_groups",
                code="uneven",
                detail=f"{batch.tasks_per_step} tasks do not divide into micro-batches of {batch.micro_batch_groups}; "
                "the last one of each step is smaller.",
                hint=f"Set {_divisor_near(batch.tasks_per_step, batch.micro_batch_groups)}.",
            )
        )
    if spec.mechanisms.ordered:
        found.append(
            Problem(
                pointer="/mechanisms/ordered",
                code="ordered_costs",
                detail="ordered makes a run bitwise reproducible and slower: its engine took about twice as long where "
                "measured, and gradients are computed in a fixed order.",
                hint="Set false if bitwise reproducibility is not needed.",
            )
        )
    return [*found, *allocation_warnings(spec)]


def _divisor_near(number: int, wanted: int) -> int:
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - wanted))


def _roles(spec: ExperimentSpec) -> Iterator[Problem]:
    roles = [role.name for role in spec.environment.facts().roles]
    for role in spec.agents:
        if role not in roles:
            close = nearest(role, roles)
            yield Problem(
                pointer=f"/agents/{role}",
                code="unknown_role",
                detail=f"{spec.environment.type} has no role {role}.",
                hint=f"Did you mean {close}?" if close else f"Its roles: {', '.join(roles)}.",
            )
    for role in roles:
        if role not in spec.agents:
            yield Problem(
                pointer="/agents",
                code="missing_role",
                detail=f"{spec.environment.type} needs an agent for the role {role}.",
                hint=f"Add `{role}: {{}}`.",
            )


def _policies(spec: ExperimentSpec) -> Iterator[Problem]:
    for name, policy in spec.policies.items():
        roles = spec.roles_of(name)
        if not roles:
            named = sorted({spec.policy_of(role) for role, agent in spec.agents.items() if agent.external is None})
            yield Problem(
                pointer=f"/policies/{name}",
                code="unused_policy",
                detail=f"No agent uses the policy {name}.",
                hint=f"Policies of the agents: {', '.join(named)}.",
            )
        frozen = [role for role in roles if not spec.agents[role].trainable]
        if frozen and len(frozen) < len(roles):
            yield Problem(
                pointer=f"/agents/{frozen[0]}/trainable",
                code="shared_policy_half_frozen",
                detail=f"Agents that share the policy {name} must all be trainable or all be frozen.",
                hint=f"Set the same value for {', '.join(roles)}, or give {frozen[0]} its own policy.",
            )
        if policy.warmup:
            yield from _demonstrations(spec, name, policy)
    yield from _nothing_to_step(spec)


def _demonstrations(spec: ExperimentSpec, name: str, policy: PolicySpec) -> Iterator[Problem]:
    """Refuse a warm-up that has nothing to learn from, and one on conversations that its model cannot read."""
    assert policy.warmup is not None
    where = f"/policies/{name}/warmup"
    if policy.warmup.demonstrations is None:
        if not spec.environment.demonstrates and policy.warmup.rows is None:
            detail = f"{spec.environment.type} has no demonstrations for a supervised warm-up."
            hint = "Remove warmup, or name a dataset in warmup.demonstrations or imported rows in warmup.rows."
            yield Problem(pointer=where, code="no_demonstrations", detail=detail, hint=hint)
    elif isinstance(policy.source, FactoryModel):
        detail = f"The policy {name} is a factory model, which has no chat template and cannot read conversations."
        hint = "Remove demonstrations, or set model.type: package, folder or registered with a language model."
        yield Problem(pointer=f"{where}/demonstrations", code="needs_chat_model", detail=detail, hint=hint)


def _nothing_to_step(spec: ExperimentSpec) -> Iterator[Problem]:
    """A run trains somebody in some steps, or nobody in none."""
    trained, steps = spec.trainable_policies(), spec.budget.train_steps
    if trained and not steps:
        role = spec.roles_of(trained[0])[0]
        yield Problem(
            pointer=f"/agents/{role}/trainable",
            code="nothing_to_step",
            detail=f"With 0 train steps nobody is trained, but the policy {trained[0]} is trainable.",
            hint="Set false, or train_steps to 1 or more.",
        )
    if spec.agents and not trained and steps:
        yield Problem(
            pointer="/agents",
            code="nothing_to_train",
            detail="Every agent is frozen; a run that trains needs at least one trainable agent.",
            hint="Set trainable: true for one role, or train_steps: 0 in /budget to evaluate only.",
        )


def _batch(spec: ExperimentSpec) -> Iterator[Problem]:
    batch = spec.batch
    for field in ("micro_batch_groups", "rollout_groups"):
        value = getattr(batch, field)
        if value > batch.tasks_per_step:
            yield Problem(
                pointer=f"/batch/{field}",
                code="out_of_range",
                detail=f"{field} must be at most tasks_per_step, which is {batch.tasks_per_step}; it is {value}.",
                hint=f"Set {batch.tasks_per_step}.",
            )
    if batch.min_members is not None and batch.min_members > batch.episodes_per_task:
        yield Problem(
            pointer="/batch/min_members",
            code="out_of_range",
            detail=f"min_members must be at most episodes_per_task, which is {batch.episodes_per_task}.",
            hint=f"Set {batch.episodes_per_task}." if batch.episodes_per_task > 1 else "Remove it.",
        )


def _evaluation(spec: ExperimentSpec) -> Iterator[Problem]:
    if spec.evaluation.greedy and spec.evaluation.attempts > 1:
        yield Problem(
            pointer="/evaluation/attempts",
            code="same_attempts",
            detail=f"Greedy replies do not differ between the {spec.evaluation.attempts} attempts of a task.",
            hint="Set 1, or greedy: false.",
        )


def _budget(spec: ExperimentSpec) -> Iterator[Problem]:
    target = spec.budget.target
    if target is not None and target.metric not in TARGET_METRICS:
        yield Problem(
            pointer="/budget/target/metric",
            code="unknown_value",
            detail=f"{target.metric} is not measured by evaluations.",
            hint=f"Legal values: {', '.join(TARGET_METRICS)}.",
        )
