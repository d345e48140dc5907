"""Limits of turns by task: an episode has no more of them than the longest success of its task so far (DART, arXiv
2509.23866, its cap of lengths).

Invariants: a draw's limit is fixed when it is proposed and kept until it is settled, whoever plays it; a task's only
grows, so it does not depend on who settled first within a cohort. A task that was never solved has none.
"""

from collections.abc import Sequence

from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort


def limit_turns(ctx: Context, cohort: Cohort, draws: Sequence[int]) -> None:
    """Give draws of a cohort their limits, where their tasks have one."""
    rule, choice = ctx.plan.spec.sampling.turn_limit, ctx.state.choice
    for draw in draws if rule.on else ():
        longest = choice.turns.longest.get(choice.of_draw[cohort.tasks.get(draw, draw)])
        if longest is not None:
            turns = choice.turns.of_draw[draw] = max(longest, rule.least)
            text = f"episodes of group {draw} end after {turns} turns: the longest success of its task had {longest}"
            ctx.rule(RulingKind.GROUP_LIMITED, text, cohort=cohort.no, target=f"draw:{draw}")


def note_turns(ctx: Context, task: int, finished: Sequence[EpisodeOutcome]) -> None:
    """Remember how long the longest success of a task was."""
    solved = [len(episode.samples) for episode in finished if episode.solved]
    if solved and ctx.plan.spec.sampling.turn_limit.on:
        longest = ctx.state.choice.turns.longest
        longest[task] = max(longest.get(task, 0), *solved)
