"""Groups whose members continue others: what was branched and why, and what the predictor of prefixes learns of it.

Invariants: a group says once what its members continued, when it settles; the predictor is fitted when a cohort is
settled, to all of its groups in the order of their draws, so it depends on no order of arrival. It decides where
members go on and nothing else. Where nobody continues, none of this is touched.
"""

from collections.abc import Sequence

from flexmarl.algorithms.prefix_predictor import Example, examples_of, learn
from flexmarl.algorithms.token_branching import learn_thresholds, seen_in
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.specification.branch_controllers import ContinuingOptions, EchoOptions
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort


def tell_predictor(ctx: Context, cohort: Cohort, draw: int, finished: Sequence[EpisodeOutcome]) -> None:
    """Say what members of a group continued, and keep what its prefixes came to for the next fit."""
    controller = ctx.plan.spec.sampling.branch_controller
    rows: list[Example]
    if isinstance(controller, EchoOptions):
        rows = seen_in(finished)
    elif isinstance(controller, ContinuingOptions):
        best = ctx.plan.spec.environment.facts().best_score
        rows = examples_of(finished, best) if controller.predictor == "fitted" else []
    else:
        return
    if rows:
        ctx.state.choice.prefixes.waiting.setdefault(cohort.no, {})[draw] = rows
    solved = {one.member: one.solved for one in finished}
    said = [_sentence(one, solved) for one in finished if one.branch is not None and one.branch.root in solved]
    if said:
        where = "at a token in doubt" if isinstance(controller, EchoOptions) else "where another outcome is likeliest"
        text = f"group {draw}: {len(said)} members go on {where}: {'; '.join(said)}"
        ctx.rule(RulingKind.GROUP_BRANCHED, text, cohort=cohort.no, target=f"draw:{draw}")


def _sentence(episode: EpisodeOutcome, solved: dict[int, bool]) -> str:
    branch = episode.branch
    assert branch is not None
    ended = "solved its task" if solved[branch.root] else "did not solve it"
    if branch.signals:
        (signal,) = branch.signals
        return (
            f"{episode.member} after {branch.tokens} tokens of turn {branch.turns + 1} of {branch.root}, which {ended} "
            f"(entropy {signal.entropy:.2f}, {signal.jump:.2f} above the token before, confidence "
            f"{signal.confidence:.2f})"
        )
    turns = "1 turn" if branch.turns == 1 else f"{branch.turns} turns"
    return (
        f"{episode.member} after {turns} of {branch.root}, which {ended} (predicted success {branch.predicted:.2f}, "
        f"adds {branch.value:.2f})"
    )


def learn_prefixes(ctx: Context, cohort: Cohort) -> None:
    """Fit the predictor to the groups of a settled cohort, or take the thresholds of tokens from it."""
    controller = ctx.plan.spec.sampling.branch_controller
    if isinstance(controller, EchoOptions):
        learn_thresholds(ctx.state.choice.prefixes, cohort.no, controller)
    else:
        learn(ctx.state.choice.prefixes, cohort.no)
