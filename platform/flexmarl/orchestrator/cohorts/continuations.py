"""Groups whose members continue others: what was branched and why, and what the predictor of prefixes learns of it.

Invariants: a group says once what its members continued, when it settles; the predictor is fitted when a cohort is
settled, to all of its groups in the order of their draws, so it depends on no order of arrival. It decides where
members go on and nothing else. Where nobody continues, none of this is touched.
"""

from collections.abc import Sequence

from flexmarl.algorithms.prefix_predictor import examples_of, learn
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.specification.branch_controllers import ContinuingOptions
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort


def tell_predictor(ctx: Context, cohort: Cohort, draw: int, finished: Sequence[EpisodeOutcome]) -> None:
    """Say what members of a group continued, and keep what its prefixes came to for the next fit."""
    controller = ctx.plan.spec.sampling.branch_controller
    if not isinstance(controller, ContinuingOptions):
        return
    rows = examples_of(finished, ctx.plan.spec.environment.facts().best_score)
    if rows and controller.predictor == "fitted":
        ctx.state.choice.prefixes.waiting.setdefault(cohort.no, {})[draw] = rows
    solved = {one.member: one.solved for one in finished}
    said = [_sentence(one, solved) for one in finished if one.branch is not None and one.branch.root in solved]
    if said:
        text = f"group {draw}: {len(said)} members go on where another outcome is likeliest: {'; '.join(said)}"
        ctx.rule(RulingKind.GROUP_BRANCHED, text, cohort=cohort.no, target=f"draw:{draw}")


def _sentence(episode: EpisodeOutcome, solved: dict[int, bool]) -> str:
    branch = episode.branch
    assert branch is not None
    ended = "solved its task" if solved[branch.root] else "did not solve it"
    turns = "1 turn" if branch.turns == 1 else f"{branch.turns} turns"
    return (
        f"{episode.member} after {turns} of {branch.root}, which {ended} (predicted success {branch.predicted:.2f}, "
        f"adds {branch.value:.2f})"
    )


def learn_prefixes(ctx: Context, cohort: Cohort) -> None:
    """Fit the predictor to the groups of a settled cohort."""
    learn(ctx.state.choice.prefixes, cohort.no)
