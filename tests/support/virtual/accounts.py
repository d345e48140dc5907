"""The books of a world at the end of a run: what the core says against what the store's rows say."""

from collections import Counter

from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from flexmarl.contracts.wire import EpisodeStatus, Origin
from tests.support.virtual.store import RowKey
from tests.support.virtual.world import World


def check_end(world: World, asked: list[str]) -> None:
    """Raise AssertionError naming what does not add up once a run has ended and all is told."""
    state, store = world.core.state, world.store
    assert state.lifecycle.status in TERMINAL
    for counters in (state.totals.train_episodes, state.totals.eval_episodes):
        settled = counters.finished + counters.failed + counters.cancelled
        assert counters.proposed == settled, f"episodes do not add up: {counters}"
    assert state.totals.samples_trained == len(store.ledger.applied), (
        "the core counts other rows as trained than are applied"
    )
    for name, policy in state.policies.items():
        known = -1 if policy.version is None else policy.version
        assert known == len(store.versions.get(name, [])) - 1, f"{name}: the core knows {known}"
    _check_verbs(world, asked)
    _check_attempts(world)
    if not store.ledger.aborted:
        _check_rows(world)
    if state.lifecycle.status is RunStatus.COMPLETED and state.lifecycle.reason is RunReason.BUDGET_STEPS:
        assert state.step == world.spec.budget.train_steps


def _check_verbs(world: World, asked: list[str]) -> None:
    """Every wish that somebody follows ends exactly once."""
    outcomes = Counter(outcome.operation for decision in world.log.decisions for outcome in decision.outcomes)
    assert outcomes == Counter(asked), f"outcomes {outcomes} of {asked}"


def _check_attempts(world: World) -> None:
    changes = [change.no for decision in world.log.decisions for change in decision.attempts]
    assert changes == sorted(changes)
    assert Counter(changes) == dict.fromkeys(range(1, world.core.state.lifecycle.attempt.no + 1), 2), (
        "an attempt without an end"
    )


def _check_rows(world: World) -> None:
    """No row is lost: what a kept group gave to training is applied, and everything else is recorded."""
    state, store = world.core.state, world.store
    # A run that is stopped between two cohorts has no step left for what a policy carried.
    carried = {
        (name, m.no) for name, policy in state.policies.items() if policy.carry for m in policy.carry.micro_batches
    }
    assert not carried or state.lifecycle.reason is not RunReason.BUDGET_STEPS, "a carried gradient was never stepped"
    left = [ref for ref, row in store.micro_batches.items() if row.status != "applied" and ref not in carried]
    assert not left, f"micro-batches that were cut and never applied: {left}"
    written = sum(len(ep.samples) for event, _ in store.groups.values() for ep in event.episodes)
    late = _late(world)
    waiting = sum(len(store.micro_batches[ref].keys) for ref in carried)
    told = state.totals.samples_trained + state.totals.samples_recorded + waiting
    assert told == written, f"{written} rows were written, {told} are trained, recorded or carried"
    if world.spec.sampling.group_filter.type == "none":
        missing = _trainable(world, late | _beyond(world)) - store.ledger.applied.keys()
        dropped = sum(state.totals.rows_dropped.values()) + waiting
        assert len(missing) == dropped, f"{dropped} rows were dropped for a reason, not trained are {sorted(missing)}"
    for origin, counters in ((Origin.TRAIN, state.totals.train_episodes), (Origin.EVAL, state.totals.eval_episodes)):
        fates = store.fates(origin, without=late)
        assert counters.finished == fates["finished"], f"{origin}: {counters}, rows say {fates}"
        assert counters.failed == fates["failed"], f"{origin}: {counters}, rows say {fates}"


def _late(world: World) -> set[int]:
    """Return the draws that settled after they were cancelled and are only recorded; the log says so of each."""
    notes = [note for decision in world.log.decisions for note in decision.notes]
    return {int(n.target.removeprefix("draw:")) for n in notes if "settled after it was cancelled" in n.text}


def _beyond(world: World) -> set[int]:
    """Return the draws that settled in time and that no step was left for; a ruling says so of each."""
    told = [ruling for decision in world.log.decisions for ruling in decision.rulings]
    return {int(r.target.removeprefix("draw:")) for r in told if "not needed by the last step" in r.reason}


def _trainable(world: World, late: set[int]) -> set[RowKey]:
    """Return the rows that every reading of the specification trains when no filter takes groups out."""
    batch, agents = world.spec.batch, world.spec.agents
    needed = batch.min_members or batch.episodes_per_task
    found: set[RowKey] = set()
    for event, _ in world.store.groups.values():
        finished = [ep for ep in event.episodes if ep.status is EpisodeStatus.FINISHED]
        if event.origin is Origin.TRAIN and event.draw not in late and len(finished) >= needed:
            found |= {
                (event.draw, ep.member, ep.attempt, s.role, s.turn)
                for ep in finished
                for s in ep.samples
                if agents[s.role].trainable and s.tokens
            }
    return found
