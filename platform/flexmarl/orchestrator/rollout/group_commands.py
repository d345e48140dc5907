"""Rollout commands: episode groups on their way, split so that several workers share a cohort.

A draw is open until its group settles; it belongs to one command key. A command that failed is issued again for the
draws that are still open, under the same key and a new number, after a back-off.
"""

from collections.abc import Iterator

from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.wire import EVALUATION_DRAWS, Origin, PolicyPin
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.pool.device_requests import rollout_pool
from flexmarl.orchestrator.state.cohort import Cohort, EvaluationState, Pin


def open_draws(ctx: Context, first: int, count: int, chunk: int) -> dict[int, str]:
    """Assign draws to command keys, `chunk` groups each."""
    return {draw: f"play:{first + (draw - first) // chunk * chunk}" for draw in range(first, first + count)}


def wire_pins(pins: dict[str, Pin]) -> dict[str, PolicyPin]:
    """Return a pinned vector as it travels."""
    return {name: PolicyPin(version=pin.version, digest=pin.digest) for name, pin in pins.items()}


def drive_rollout(ctx: Context, parts: Cohort | EvaluationState) -> None:
    """Issue the rollout commands of all open draws that nobody is playing."""
    by_key: dict[str, list[int]] = {}
    for draw, key in parts.open.items():
        by_key.setdefault(key, []).append(draw)
    if ctx.plan.engines.one_version and isinstance(parts, Cohort):
        _drive_given(ctx, parts, by_key)
        return
    pins = wire_pins(parts.pins)
    for key, draws in by_key.items():
        if ctx.wanted(key):
            ctx.issue(key, _command(ctx, parts, draws, pins), left=len(draws))


def _drive_given(ctx: Context, cohort: Cohort, by_key: dict[str, list[int]]) -> None:
    """Issue the commands of draws that an engine was given: the others wait for one that is free."""
    for key, draws in by_key.items():
        if draws[0] in cohort.older and ctx.wanted(key):
            engine = next(
                (lease.lease_id for lease in ctx.state.fleet.leases.values() if draws[0] in lease.assigned.draws), 0
            )
            give(ctx, cohort, key, draws, cohort.older[draws[0]], engine)


def give(ctx: Context, cohort: Cohort, key: str, draws: list[int], pins: dict[str, Pin], engine: int) -> None:
    """Let an engine play draws of one command under the vector that it holds."""
    cohort.older |= dict.fromkeys(draws, pins)
    ctx.issue(key, _command(ctx, cohort, draws, wire_pins(pins), engine), left=len(draws))


def _command(
    ctx: Context, parts: Cohort | EvaluationState, draws: list[int], pins: dict[str, PolicyPin], engine: int = 0
) -> PlayGroups:
    training = isinstance(parts, Cohort)
    return PlayGroups(
        pool=rollout_pool(ctx),
        epoch=ctx.state.lifecycle.epoch,
        origin=Origin.TRAIN if training else Origin.EVAL,
        groups=tuple(_train_orders(ctx, parts, draws) if isinstance(parts, Cohort) else _evaluation_orders(ctx, draws)),
        pins=pins,
        sampling_seed=ctx.plan.spec.seed,
        greedy=not training and ctx.plan.spec.evaluation.greedy,
        follows=ctx.plan.lag.follows if training else {},
        by_episode=training and ctx.plan.cutting.by_episode,
        cohort=parts.no if isinstance(parts, Cohort) else parts.step,
        engine=engine,
        pauses=training and ctx.plan.spec.mechanisms.redundancy.fate == "pause",
        predictor=tuple(ctx.state.choice.prefixes.weights) if training else (),
    )


def _train_orders(ctx: Context, cohort: Cohort, draws: list[int]) -> Iterator[GroupOrder]:
    for draw in draws:
        number = cohort.tasks.get(draw, draw)
        seed = ctx.plan.training_seed(ctx.state.choice.of_draw.get(number, number))
        yield GroupOrder(
            draw=draw,
            task_seed=seed,
            members=members_of(ctx, cohort, draw),
            enough=0 if cohort.long_round else ctx.plan.cohort.enough_members,
            spares=ctx.plan.cohort.spares,
            turns=ctx.state.choice.turns.of_draw.get(draw, 0),
        )


def _evaluation_orders(ctx: Context, draws: list[int]) -> Iterator[GroupOrder]:
    for draw in draws:
        evaluation = ctx.plan.spec.evaluation
        seed = ctx.plan.evaluation_seed((draw - EVALUATION_DRAWS) % evaluation.tasks)
        yield GroupOrder(draw=draw, task_seed=seed, members=evaluation.attempts)


def members_of(ctx: Context, cohort: Cohort, draw: int) -> int:
    """Return how many members the group of a draw has."""
    return ctx.state.choice.members.get(draw, ctx.plan.members_of(cohort.long_round))


def newly_ended(ctx: Context, parts: Cohort | EvaluationState, event: GroupSettled) -> int:
    """Count the members of an open draw that a fact is the first to tell of: all of them, unless episodes settle."""
    if not isinstance(parts, Cohort):
        return ctx.plan.spec.evaluation.attempts
    if not ctx.plan.cutting.by_episode:
        return members_of(ctx, parts, event.draw)
    return len({episode.member for episode in event.episodes} - parts.ended.get(event.draw, {}).keys())


def settle_draw(ctx: Context, parts: Cohort | EvaluationState, draw: int) -> None:
    """Close a draw, and its command with the last of its draws."""
    key = parts.open.pop(draw)
    if isinstance(parts, Cohort):
        parts.older.pop(draw, None)
        parts.ended.pop(draw, None)
        ctx.state.choice.members.pop(draw, None)
        ctx.state.choice.turns.of_draw.pop(draw, None)
    command = ctx.state.outstanding.get(key)
    if command is not None:
        command.left -= 1
        if command.left == 0:
            ctx.answered(key)
