"""How long the groups of a task will be, learned from those that it had: a ranker that needs no model of its own.

StreamRL (arXiv 2504.15930) ranks by a small language model that reads prompts and is fine-tuned on their lengths; here
a task that was played before is expected to be as long as it was, and one that was not as long as tasks are. Scheduling
longest first (LPT) ends within 4/3 of the least possible time where lengths are known. A wrong expectation costs time
and nothing else: which tasks are played, and by which draws, is not touched.

Memory is a `TaskBelief`: `solved` is a task's moving mean of the tokens of an episode, `missed` is not used.
"""

from collections.abc import Mapping, Sequence

from flexmarl.algorithms.task_belief import TaskBelief

KEPT = 0.5
"""Share of a moving mean that is kept when its task is played again: a policy that learns changes its lengths."""
KEPT_OF_ALL = 0.98
"""Of the moving mean over all tasks, per group."""
USUAL = "usual"


def note_length(belief: TaskBelief, tasks: int, task: int, step: int, tokens: Sequence[int]) -> None:
    """Take in the tokens of the finished episodes of a group; none says nothing. `tasks`: size of the set."""
    if not tokens:
        return
    mean = sum(tokens) / len(tokens)
    before, _, seen = belief.of(task)
    belief.put(tasks, task, KEPT * before + (1.0 - KEPT) * mean if seen else mean, 0.0, step + 1)
    usual = belief.figures.get(USUAL)
    belief.figures[USUAL] = mean if usual is None else KEPT_OF_ALL * usual + (1.0 - KEPT_OF_ALL) * mean


def expected_length(belief: TaskBelief, task: int) -> float | None:
    """Return the tokens that an episode of a task is expected to have; None while nothing of it was played."""
    mean, _, seen = belief.of(task)
    return mean if seen else None


def longest_first(draws: Sequence[int], expected: Mapping[int, float], usual: float) -> list[int]:
    """Order draws by what is expected of them, the longest first; who is equal keeps the order. `usual`: of others."""
    return sorted(draws, key=lambda draw: -expected.get(draw, usual))


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's correlation of pairs, equal values sharing their mean rank; None where one side is constant."""
    if len(pairs) < 2:
        return None
    one, other = _ranks([pair[0] for pair in pairs]), _ranks([pair[1] for pair in pairs])
    middle = (len(pairs) - 1) / 2
    above = sum((a - middle) * (b - middle) for a, b in zip(one, other, strict=True))
    spreads = [sum((rank - middle) ** 2 for rank in side) for side in (one, other)]
    return above / (spreads[0] * spreads[1]) ** 0.5 if all(spreads) else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 0; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, begin = [0.0] * len(values), 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for place in order[begin:end]:
            found[place] = (begin + end - 1) / 2
        begin = end
    return found
