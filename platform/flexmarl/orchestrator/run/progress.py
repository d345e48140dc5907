"""What lists and headers show of a run: figures and one line on what it waits for. Read-only; costs no decision."""

from collections.abc import Iterator
from statistics import median
from typing import Literal

from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.live import (
    AgentProgress,
    ArchivedRows,
    FleetProgress,
    MicroBatchProgress,
    Progress,
    TokenAccount,
)
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.orchestrator.plan import Plan
from flexmarl.orchestrator.run.scaling import wanted_engines
from flexmarl.orchestrator.state.cohort import Cohort, EvaluationState, PolicyCohort, playing
from flexmarl.orchestrator.state.history import History
from flexmarl.orchestrator.state.tokens import TokenCounts
from flexmarl.orchestrator.state.tree import RunState

PolicyStage = Literal["waiting", "accumulating", "stepping", "published"]


def progress(plan: Plan, state: RunState) -> Progress:
    """Read a run's figures off its state. Episodes are those of training; evaluation is counted apart."""
    cohort, history, episodes = state.cohort, state.history, state.totals.train_episodes
    settled = 0 if cohort is None else plan.cohort.groups - len(cohort.open)
    return Progress(
        step=state.step,
        max_steps=plan.spec.budget.train_steps,
        cohort_groups_settled=settled,
        cohort_groups=0 if cohort is None else plan.cohort.groups,
        episodes_proposed=episodes.proposed,
        episodes_finished=episodes.finished,
        episodes_failed=episodes.failed,
        episodes_cancelled=episodes.cancelled,
        samples_trained=state.totals.samples_trained,
        rows_replayed=state.totals.rows_replayed,
        archive=tuple(_archived(history)),
        tokens_generated=state.totals.tokens_generated,
        tokens=_account(state.totals.tokens),
        step_seconds=median(history.step_seconds) if history.step_seconds else None,
        reward=history.reward,
        reward_first=history.reward_first,
        eval_solved=None if history.eval_last is None else history.eval_last[0],
        eval_best=None if history.eval_best is None else history.eval_best[0],
        eval_step=None if history.eval_step < 0 else history.eval_step,
        agents={role: _agent(state, role, policy) for role, policy in plan.policy_of.items()},
        micro_batches=tuple(_micro_batches(plan, state, name) for name in plan.trainable),
        fleet=_fleet(plan, state),
        waiting_for=waiting_for(plan, state),
        attempt=state.lifecycle.attempt.no,
        frozen=state.lifecycle.pause.frozen,
        release_at=state.lifecycle.pause.release_at,
    )


def _archived(history: History) -> Iterator[ArchivedRows]:
    for name, ages in history.archive.items():
        for age, (groups, rows) in ages.items():
            yield ArchivedRows(policy=name, age=age, groups=groups, rows=rows)
    for name, (age, groups, rows) in history.imported.items():
        yield ArchivedRows(policy=name, age=age, origin="imported", groups=groups, rows=rows)


def _fleet(plan: Plan, state: RunState) -> FleetProgress:
    leases = state.fleet.leases.values()
    return FleetProgress(
        engines=len(state.fleet.at_work(DeviceUse.ENGINE)),
        joining=len(state.fleet.joining()),
        leaving=sum(lease.membership == "leaving" for lease in leases),
        min=plan.engines.least,
        max=plan.engines.most,
        wanted=wanted_engines(plan.engines, state.fleet),
        why=state.fleet.scaling.why,
    )


def _account(counts: TokenCounts) -> TokenAccount:
    return TokenAccount(
        sampled=counts.sampled,
        delivered=counts.delivered,
        undelivered=dict(counts.lost),
        waiting=counts.waiting,
        breaks=dict(counts.breaks),
    )


def _agent(state: RunState, role: str, policy: str) -> AgentProgress:
    found = state.policies.get(policy)
    version = found.version if found is not None and found.version is not None else 0
    return AgentProgress(reward=state.history.role_reward.get(role), version=version)


def _micro_batches(plan: Plan, state: RunState, name: str) -> MicroBatchProgress:
    cohort = state.cohort
    if cohort is None:
        return MicroBatchProgress(policy=name)
    own = cohort.policies[name]
    cut = len(own.micro_batches)
    expected = max(cut, -(-plan.cohort.groups // plan.cutting.slice_groups)) if cohort.times.settled_at is None else cut
    return MicroBatchProgress(
        policy=name, cut=cut, accumulated=own.accumulated, expected=expected, state=_policy_state(state, name, own)
    )


def _policy_state(state: RunState, name: str, own: PolicyCohort) -> PolicyStage:
    if own.stepped:
        return "published"
    if f"step:{name}" in state.outstanding:
        return "stepping"
    return "accumulating" if own.accumulated < len(own.micro_batches) else "waiting"


def waiting_for(plan: Plan, state: RunState) -> str:
    """Say in a few words what the pipeline waits for now."""
    if state.lifecycle.status in TERMINAL or state.lifecycle.status in (RunStatus.DRAFT, RunStatus.PAUSED):
        return ""
    if state.lifecycle.status is RunStatus.QUEUED:
        return state.lifecycle.reason_text or "devices"
    if state.lifecycle.status is RunStatus.RESUMING and "devices" in state.outstanding:
        return "devices"
    lost = [lease for use in DeviceUse for lease in state.fleet.at_work(use) if not lease.child.incarnation]
    if lost:
        return f"the start of the {lost[0].use} on {lost[0].device_id}"
    unbound = [name for name, policy in state.policies.items() if not policy.accumulator]
    if unbound:
        return f"binding of {', '.join(unbound)} to a trainer"
    if state.cohort is not None:
        return _cohort_waits_for(plan, state, state.cohort)
    if state.evaluation is not None:
        return _evaluation_waits_for(plan, state.evaluation)
    if state.checkpoints:
        return f"the {', '.join(state.checkpoints)} checkpoint"
    return "weights on the engine"


def _evaluation_waits_for(plan: Plan, evaluation: EvaluationState) -> str:
    return f"{playing(evaluation, plan.spec.evaluation.attempts)} evaluation episodes"


def _cohort_waits_for(plan: Plan, state: RunState, cohort: Cohort) -> str:
    if cohort.open:
        return f"{len(cohort.open)} of {plan.cohort.groups} episode groups"
    for name, own in cohort.policies.items():
        if own.accumulated < len(own.micro_batches):
            return f"gradients of {name}: {own.accumulated} of {len(own.micro_batches)} micro-batches"
        if not own.stepped:
            return f"the optimizer step of {name}"
    if state.evaluation is not None:
        return _evaluation_waits_for(plan, state.evaluation)
    engines = [lease.device_id for lease in state.fleet.of_use(DeviceUse.ENGINE)]
    return f"new weights on {', '.join(engines)}"
