"""Invariants of every step of a simulation: its rows are trained once, belong to its cohort and are within their bound.

Like those of `invariants`, they are computed from events, commands and turns, not from the counters of the core.
"""

from collections import Counter
from collections.abc import Iterator

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.wire import CutSample, Origin
from flexmarl.orchestrator.plan import Plan
from flexmarl.simulator.reporting.watching import RunWatch

RowId = tuple[int, int, int, str, int]
"""(draw, member, attempt, role, turn)"""


def micro_batches_are_trained_once(watch: RunWatch) -> Iterator[str]:
    """Each micro-batch is in one committed step at most, and its gradient was there before."""
    counts = Counter(trained_in(watch))
    twice = next((key for key, count in counts.items() if count > 1), None)
    if twice is not None:
        yield f"micro-batch {twice[1]} of {twice[0]} is in {counts[twice]} committed steps"
    there = {(f.policy, f.micro_batch) for _, f in watch.facts if isinstance(f, e.MicroBatchAccumulated)}
    missing = next((key for key in counts if key not in there), None)
    if missing is not None:
        yield f"micro-batch {missing[1]} of {missing[0]} was trained without a gradient"


def trained_in(watch: RunWatch) -> list[tuple[str, int]]:
    """List the micro-batches of all committed steps."""
    return [(fact.policy, no) for fact, numbers in _steps(watch) for no in numbers]


def _steps(watch: RunWatch) -> Iterator[tuple[e.StepCommitted, tuple[int, ...]]]:
    """List the committed steps with their micro-batches."""
    asked = {
        (order.policy, order.next_version, order.accumulator): order.micro_batches
        for numbered in watch.commands.values()
        if isinstance(order := numbered.command, c.OptimizerStep)
    }
    for _, fact in watch.facts:
        if isinstance(fact, e.StepCommitted):
            yield fact, asked[fact.policy, fact.version, fact.accumulator]


def rows_are_within_their_bound(watch: RunWatch) -> Iterator[str]:
    """Nothing older than a policy's bound is trained, but where it trains what it admitted, however old it grew."""
    spec, made, cut = watch.cluster.driver.core.plan.spec, _first_makers(watch), _rows_cut(watch)
    for fact, numbers in _steps(watch):
        rule = spec.lag_policy_of(fact.policy)
        for row in (row for no in numbers for row in cut.get((fact.policy, no), ())):
            # Of a row that was not told other invariants say so.
            first = made.get((row.draw, row.member, row.attempt, row.role, row.turn), fact.version)
            lag = fact.version - 1 - first
            if lag > rule.bound and rule.at_cut != "train":
                yield f"version {fact.version} of {fact.policy} learned from draw {row.draw}, {lag} versions old"


def _rows_cut(watch: RunWatch) -> dict[tuple[str, int], tuple[CutSample, ...]]:
    """Return the rows of each micro-batch, but of those that are trained again."""
    return {
        (order.ref.policy, order.ref.no): order.samples
        for numbered in watch.commands.values()
        if isinstance(order := numbered.command, c.CutMicroBatch) and not order.replayed
    }


def _first_makers(watch: RunWatch) -> dict[RowId, int]:
    """Return which version made the first token of each row that was told."""
    found: dict[RowId, int] = {}
    policy_of = watch.cluster.driver.core.plan.policy_of
    for _, fact, outcome in watch.settled():
        order = watch.commands[fact.command_no].command
        assert isinstance(order, c.PlayGroups)
        for row in outcome.samples:
            key = fact.draw, outcome.member, outcome.attempt, row.role, row.turn
            found[key] = min(row.segments[::2], default=order.pins[policy_of[row.role]].version)
    return found


def steps_train_their_groups(watch: RunWatch) -> Iterator[str]:
    """A step has as many groups as it needs, refused ones among them where nothing is drawn in their place.

    It has more where surplus may join it, or would be too old for the next one; fewer where all it has left are lost,
    or its policies step by their own clocks.
    """
    plan = watch.cluster.driver.core.plan
    cut, gone = _cut(watch), _gone(watch)
    needed, draws_again = plan.cohort.groups, plan.settlement.group_filter.draws_again
    for no, draws in _asked(watch).items():
        trained = cut.get(no, set())
        refused = set() if draws_again else gone.get((no, RulingKind.GROUP_REFUSED), set())
        counted = trained | refused
        name = f"step {no + 1} trains {len(trained)} groups, {len(counted)} with those refused; it needs {needed}"
        if len(counted) > needed and plan.spec.mechanisms.redundancy.fate != "join":
            due = _at_their_bound(watch, plan) & trained if plan.cohort.surplus_continues else set()
            if len(counted) - plan.cohort.groups > len(due):
                yield f"{name}; {len(due)} would be too old for the next one"
        elif len(counted) < plan.cohort.groups and no < max(cut, default=0) and not plan.spec.mechanisms.policy_clock:
            lost = {draw for (cohort, _), some in gone.items() for draw in some if cohort == no} - counted
            if len(counted) + len(lost) < plan.cohort.groups:
                yield f"{name}; {len(lost)} are lost"
            left = draws - lost - set().union(*cut.values()) - set().union(*gone.values())
            if left and not plan.cohort.surplus_continues:
                yield f"{name}; draws {sorted(left)[:3]} were given up"


def _asked(watch: RunWatch) -> dict[int, set[int]]:
    """Return the training draws that were asked for, by the cohort that they were asked for."""
    found: dict[int, set[int]] = {}
    for numbered in watch.commands.values():
        order = numbered.command
        if isinstance(order, c.PlayGroups) and order.origin is Origin.TRAIN:
            found.setdefault(order.cohort, set()).update(group.draw for group in order.groups)
    return found


def _cut(watch: RunWatch) -> dict[int, set[int]]:
    """Return the draws of which something was cut, by cohort."""
    found: dict[int, set[int]] = {}
    for numbered in watch.commands.values():
        if isinstance(order := numbered.command, c.CutMicroBatch) and not order.replayed:
            found.setdefault(order.cohort, set()).update(row.draw for row in order.samples)
    return found


def _gone(watch: RunWatch) -> dict[tuple[int, RulingKind], set[int]]:
    """Return the draws of which it was decided that they, or rows of them, are not trained, by cohort and kind."""
    found: dict[tuple[int, RulingKind], set[int]] = {}
    for ruling in watch.rulings:
        what, _, draw = ruling.target.partition(":")
        if what == "draw":
            found.setdefault((ruling.cohort, ruling.kind), set()).add(int(draw))
    return found


def _at_their_bound(watch: RunWatch, plan: Plan) -> set[int]:
    """Return the draws that were trained as old as a policy allows that waits for what would grow older."""
    made, rows = _first_makers(watch), _rows_cut(watch)
    return {
        row.draw
        for fact, numbers in _steps(watch)
        if (rule := plan.spec.lag_policy_of(fact.policy)).at_cut == "wait"
        for no in numbers
        for row in rows.get((fact.policy, no), ())
        if fact.version - 1 - made[row.draw, row.member, row.attempt, row.role, row.turn] >= rule.bound
    }
