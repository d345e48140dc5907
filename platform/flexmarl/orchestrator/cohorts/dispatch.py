"""In which order the groups of a step are sent to play: as they were drawn, or those expected to be longest first.

Invariants: which tasks are played, which draw plays which and how many groups a command has depend on no expectation;
what is remembered of a task is what all finished members of its groups said, before any filter. Without ranking,
nothing here is touched.
"""

from collections.abc import Sequence

from flexmarl.algorithms.length_ranking import USUAL, expected_length, longest_first, note_length, rank_correlation
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort


def in_order(ctx: Context, cohort: Cohort, draws: dict[int, str]) -> dict[int, str]:
    """Return fresh draws of a cohort, by the commands that play them, in the order in which they are sent."""
    if not ctx.plan.tasks.ranked_from:
        return draws
    lengths = ctx.state.choice.lengths
    expected = {}
    for draw in draws:
        task = _task_of(ctx, cohort, draw)
        length = None if task is None else expected_length(lengths.belief, task)
        if length is not None:
            expected[draw] = length
    lengths.expected |= expected
    order = longest_first(list(draws), expected, lengths.belief.figures.get(USUAL, 0.0))
    return dict(zip(order, draws.values(), strict=True))


def note_lengths(ctx: Context, cohort: Cohort, draw: int, finished: Sequence[EpisodeOutcome]) -> None:
    """Remember how long the episodes of a settled group were, and compare that with what was expected."""
    tasks, lengths = ctx.plan.tasks.ranked_from, ctx.state.choice.lengths
    if not tasks or not finished:
        return
    tokens = [sum(sample.tokens for sample in episode.samples) for episode in finished]
    expected = lengths.expected.pop(draw, None)
    if expected is not None:
        lengths.compared.append((expected, sum(tokens) / len(tokens)))
    task = _task_of(ctx, cohort, draw)
    if task is not None:
        note_length(lengths.belief, tasks, task, cohort.no, tokens)


def dispatch_metrics(ctx: Context, step: int) -> None:
    """Write how well the groups that settled since the step before were ranked; begins to compare anew."""
    lengths = ctx.state.choice.lengths
    correlation = rank_correlation(lengths.compared)
    if correlation is not None:
        ctx.metric("groups/length_rank", correlation, step)
    lengths.compared.clear()
    playing = {draw for cohort in ctx.state.cohorts for draw in cohort.open}
    lengths.expected = {draw: length for draw, length in lengths.expected.items() if draw in playing}


def _task_of(ctx: Context, cohort: Cohort, draw: int) -> int | None:
    number = cohort.tasks.get(draw, draw)
    chosen = ctx.state.choice.of_draw.get(number)
    if chosen is not None:
        return chosen
    return ctx.plan.spec.environment.task_of(ctx.plan.training_seed(number))
