"""Tasks that a sampler chooses by how earlier groups ended: asked when draws are proposed, told when they settle.

Invariants: a draw keeps its task, whichever cohort it moves to; a task that is played is not chosen again before it has
settled, unless the set has too few; what a sampler is told of a group is what all of its finished members earned,
before any filter, and is told once. Where samplers choose nothing, none of this is touched.
"""

from collections.abc import Sequence

from flexmarl.algorithms.task_sampler import PlayedTask, Wanted, all_alike
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.orchestrator.cohorts.turn_limits import note_turns
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort


def choose_tasks(ctx: Context, cohort: Cohort, draws: Sequence[int]) -> None:
    """Give fresh draws of a cohort their tasks."""
    tasks, choice = ctx.plan.tasks, ctx.state.choice
    waiting = list(draws) if tasks.chosen_from else []
    while waiting:
        excluded = _excluded(ctx, cohort)
        count = min(len(waiting), tasks.chosen_from - len(excluded))
        wanted = Wanted(
            run_seed=ctx.plan.spec.seed,
            draw=waiting[0],
            step=cohort.no,
            tasks=tasks.chosen_from,
            count=count,
            members=ctx.plan.cohort.members,
            excluded=excluded,
        )
        choice.of_draw |= zip(waiting[:count], tasks.sampler.choose(choice.belief, wanted), strict=True)
        del waiting[:count]


def _excluded(ctx: Context, cohort: Cohort) -> set[int]:
    """Return the tasks that are not to be chosen: all that are played, and all that the cohort has played. Where these
    are the whole set: those that the cohort plays."""
    of_draw, most, backlog = ctx.state.choice.of_draw, ctx.plan.tasks.chosen_from, ctx.state.backlog
    waiting = {*backlog.repeated, *backlog.deferred, *backlog.cancelled}
    played = waiting.union(one.tasks.get(draw, draw) for one in ctx.state.cohorts for draw in one.open)
    # What an earlier cohort has played to the end is not looked at: how long its draws are known is a matter of time.
    wide = {task for draw, task in of_draw.items() if draw in played or draw >= cohort.first_draw}
    own = {task for draw, task in of_draw.items() if draw in cohort.open}
    return next((tasks for tasks in (wide, own) if len(tasks) < most), set())


def tell_sampler(ctx: Context, cohort: Cohort, draw: int, finished: Sequence[EpisodeOutcome]) -> None:
    """Let the sampler see how a group ended; one of which nothing finished says nothing of its task."""
    tasks, choice = ctx.plan.tasks, ctx.state.choice
    task = task_of(ctx, cohort, draw)
    if task is None or not finished:
        return
    shares = tuple(min(max(episode.team_score / tasks.best_score, 0.0), 1.0) for episode in finished)
    played = PlayedTask(tasks.chosen_from, task, cohort.no, shares, all_alike(finished))
    tasks.sampler.observe(choice.belief, played)
    note_turns(ctx, task, finished)
    if ctx.plan.spec.sampling.members.counts:
        tasks.counter.observe(choice.rates, played)


def task_of(ctx: Context, cohort: Cohort, draw: int) -> int | None:
    """Return the task that was chosen for a draw; None where a draw's number is its task."""
    return ctx.state.choice.of_draw.get(cohort.tasks.get(draw, draw))


def task_text(ctx: Context, cohort: Cohort, draw: int) -> str:
    """Say what the sampler believes of a draw's task."""
    task = task_of(ctx, cohort, draw)
    words = "" if task is None else ctx.plan.tasks.sampler.of_task(ctx.state.choice.belief, task)
    return f"; task {task}: {words}" if words else ""


def belief_text(ctx: Context) -> str:
    """Say of a settled cohort what the sampler believes of its tasks since."""
    tasks, belief = ctx.plan.tasks, ctx.state.choice.belief
    text = tasks.sampler.of_set(belief, tasks.chosen_from) if tasks.chosen_from else ""
    return f"; {text}" if text else ""


def forget_draws(ctx: Context) -> None:
    """Forget the tasks of draws that are over and will not be played again."""
    state = ctx.state
    if not state.choice.of_draw:
        return
    backlog = state.backlog
    kept = {*backlog.repeated, *backlog.deferred, *backlog.cancelled}
    for cohort in state.cohorts:
        kept |= {*cohort.open, *cohort.tasks.values(), *(group.draw for group in cohort.pending)}
    state.choice.of_draw = {draw: task for draw, task in state.choice.of_draw.items() if draw in kept}
