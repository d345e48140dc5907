"""Which checkpoints stay, by the rules of the specification: the newest, the best evaluated, every so many steps.

Invariants: the core remembers exactly the checkpoints that the rules keep, so its memory of them is as long as the
rules say; whatever leaves that memory is let go in the same decision. What people pin, copy or read is not known here:
rows say it, and nothing that is let go is removed while they do. The core names no folder and removes none.
"""

from collections.abc import Mapping

from flexmarl.contracts.commands import KeepCheckpoints, KeptCheckpoint, KeptFor
from flexmarl.contracts.events import CheckpointWritten
from flexmarl.contracts.specification.resources import Checkpoints
from flexmarl.contracts.status import TERMINAL
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.history import Score


def kept(scores: Mapping[int, Score | None], rules: Checkpoints) -> dict[int, tuple[KeptFor, ...]]:
    """Say which of these checkpoints stay, and why: step -> rules. A tie in score is the earlier one's."""
    newest = sorted(scores)[-rules.keep_last :]
    evaluated = {step: score for step, score in scores.items() if score is not None}
    best = sorted(evaluated, key=lambda step: (-evaluated[step][0], -evaluated[step][1], step))[: rules.keep_best]
    found: dict[int, tuple[KeptFor, ...]] = {}
    for step in sorted(scores):
        why: tuple[tuple[KeptFor, bool], ...] = (
            ("last", step in newest),
            ("best", step in best),
            ("every", rules.keep_every is not None and step % rules.keep_every == 0),
        )
        if reasons := tuple(name for name, holds in why if holds):
            found[step] = reasons
    return found


def among_best(ctx: Context, step: int, score: Score) -> bool:
    """Note an evaluation; tell whether its vector is to be kept as one of the best."""
    history, rules = ctx.state.history, ctx.plan.spec.checkpoints
    history.best = sorted([*history.best, (step, *score)], key=lambda one: (-one[1], -one[2], one[0]))
    del history.best[rules.keep_best :]
    if step in history.cuts and history.cuts[step] != score:
        history.cuts[step] = score
        _rule(ctx)
    return any(one[0] == step for one in history.best)


def note_written(ctx: Context, event: CheckpointWritten) -> None:
    """Take a written checkpoint in, and let go of what the rules keep no more; what an ended run left stays."""
    if ctx.state.lifecycle.status in TERMINAL:
        return
    history = ctx.state.history
    score = history.eval_last if history.eval_step == event.step else None
    known = next(((solved, team) for step, solved, team in history.best if step == event.step), score)
    history.cuts[event.step] = known or history.cuts.get(event.step)
    _rule(ctx)


def _rule(ctx: Context) -> None:
    history = ctx.state.history
    why = kept(history.cuts, ctx.plan.spec.checkpoints)
    newest = max(history.cuts)
    history.cuts = {step: history.cuts[step] for step in why}
    rows = tuple(KeptCheckpoint(step=step, why=reasons, score=history.cuts[step]) for step, reasons in why.items())
    ctx.emit(KeepCheckpoints(newest=newest, kept=rows))
