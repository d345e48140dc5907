"""Evaluation: episodes on held-out tasks beside training or without any, counted apart.

Invariants: an evaluation pins the committed vector at the moment it opens and is over before newer weights replace
that vector on an engine; at most one is open; its episodes never enter a cohort. A failed evaluation episode is left
out of the means and named in the note.
"""

from flexmarl.contracts.decisions import NoteLevel
from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.status import RunReason
from flexmarl.contracts.wire import EVALUATION_DRAWS
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.rollout.group_commands import drive_rollout, open_draws, settle_draw
from flexmarl.orchestrator.state.cohort import EvaluationState, Tally
from flexmarl.orchestrator.state.group_counts import add_episode, count_fates, finished_of
from flexmarl.orchestrator.state.tree import WantedCheckpoint
from flexmarl.orchestrator.training.checkpoint_retention import among_best


def evaluation_due(ctx: Context, *, final: bool = False) -> bool:
    """Tell whether the committed vector should be evaluated now: on schedule, before step 1, and at the end."""
    state = ctx.state
    if state.evaluation is not None or state.history.eval_step == state.step:
        return False
    every = ctx.plan.spec.evaluation.every_steps
    # Where cohorts overlap, a step may pass before its weights are served: the next one is evaluated in its place.
    return final or state.step // every > state.history.eval_step // every


def only_evaluates(ctx: Context) -> bool:
    """Tell whether the run has nothing to step: its one evaluation is all that it does."""
    return not ctx.plan.spec.budget.train_steps


def nothing_finished(ctx: Context) -> str:
    """Say why an evaluation without a finished episode has no result, and what to do next."""
    why = ctx.state.history.eval_failure or "no reason was reported"
    return f"no episode of the evaluation finished: {why}. Change what it names, then retry the run."


def open_evaluation(ctx: Context) -> None:
    """Send the held-out tasks to play under the committed vector."""
    state = ctx.state
    tasks = ctx.plan.spec.evaluation.tasks
    first = EVALUATION_DRAWS + state.numbers.evaluation_draw
    chunk = max(1, ctx.plan.spec.batch.rollout_groups * ctx.plan.cohort.members // ctx.plan.spec.evaluation.attempts)
    state.evaluation = EvaluationState(state.step, state.vector(), open_draws(ctx, first, tasks, chunk))
    state.numbers.evaluation_draw += tasks
    if not state.lifecycle.pause.frozen:  # what is open while the run is frozen is proposed when it goes on
        state.totals.eval_episodes.proposed += tasks * ctx.plan.spec.evaluation.attempts
        drive_rollout(ctx, state.evaluation)


def on_evaluation_group(ctx: Context, event: GroupSettled) -> None:
    """Count one held-out task; conclude with the last."""
    evaluation = ctx.state.evaluation
    if evaluation is None or event.draw not in evaluation.open:
        return
    settle_draw(ctx, evaluation, event.draw)
    attempts = ctx.plan.spec.evaluation.attempts
    finished = finished_of(event.episodes)[:attempts]
    count_fates(ctx.state.totals.eval_episodes, evaluation.tally, event.episodes, len(finished), attempts)
    before = evaluation.tally.samples, evaluation.tally.tokens
    for episode in finished:
        add_episode(evaluation.tally, episode)
    ctx.state.totals.samples_recorded += evaluation.tally.samples - before[0]
    ctx.state.totals.tokens_generated += evaluation.tally.tokens - before[1]
    if not evaluation.open:
        _conclude(ctx, evaluation)


def _conclude(ctx: Context, evaluation: EvaluationState) -> None:
    state, tally = ctx.state, evaluation.tally
    state.evaluation = None
    state.history.eval_step = evaluation.step
    if not tally.finished:
        state.history.eval_failure = tally.last_failure
        ctx.note(f"evaluation after step {evaluation.step}: no episode finished", NoteLevel.WARNING)
        return
    solved, score = tally.solved / tally.finished, tally.team.total / tally.finished
    _points(ctx, evaluation.step, tally, solved, score)
    failed = f", {tally.failed} episodes failed" if tally.failed else ""
    ctx.note(f"evaluation after step {evaluation.step}: solved {solved:.3f}, team score {score:.3f}{failed}")
    state.history.eval_last = (solved, score)
    if state.history.eval_best is None or (solved, score) > state.history.eval_best:
        state.history.eval_best = (solved, score)
    if among_best(ctx, evaluation.step, (solved, score)):
        state.checkpoints["best"] = WantedCheckpoint("best", evaluation.step, evaluation.pins)


def _points(ctx: Context, step: int, tally: Tally, solved: float, score: float) -> None:
    ctx.metric("eval/solved", solved, step)
    ctx.metric("eval/team_score", score, step)
    for name, total in tally.facts.totals.items():
        ctx.metric(f"eval/fact/{name}", total / tally.facts.counts[name], step)


def target_reached(ctx: Context) -> tuple[RunReason, str] | None:
    """Return the reason to stop when the last evaluation fulfils the budget's target."""
    target, last = ctx.plan.spec.budget.target, ctx.state.history.eval_last
    if target is None or last is None:
        return None
    value = last[0] if target.metric == "eval/solved" else last[1]
    if value < target.value:
        return None
    return RunReason.TARGET_REACHED, f"{target.metric} reached {value:.3f}, the target is {target.value:g}"
