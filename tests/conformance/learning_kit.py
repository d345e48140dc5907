"""What every learning plug-in must keep, built in or plugged in.

`check_objective` for a loss with a correction and an average, `check_estimator` for an advantage with a group key,
`check_shaper`, `check_normaliser` and `check_filter` for the others. Policies are tables of logits, so that whole
gradients are cheap; everything is computed in fp64.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flexmarl.algorithms.advantages import ADVANTAGES, Advantage
from flexmarl.algorithms.filters import GroupFilter, Signal
from flexmarl.algorithms.group_keys import GroupKey
from flexmarl.algorithms.losses import Rows
from flexmarl.algorithms.rewards import row_rewards
from flexmarl.algorithms.shaping import Shaper
from flexmarl.contracts.plugins import Readiness
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from workers.training.objective import BatchSums, Objective, total

RELATIVE = 1e-12
CONTEXTS, WORDS, TOKENS = 5, 4, 6


@dataclass(frozen=True)
class Drawn:
    """Rows that a tabular policy said, some of them long ago or by another program."""

    logits: torch.Tensor
    """[contexts, words]"""
    contexts: torch.Tensor
    words: torch.Tensor
    present: torch.Tensor
    behaviour: torch.Tensor
    lags: torch.Tensor
    advantages: torch.Tensor
    reference: torch.Tensor

    def part(self, numbers: Sequence[int]) -> "Drawn":
        which = torch.tensor(numbers, dtype=torch.long)
        names = ("contexts", "words", "present", "behaviour", "lags", "advantages", "reference")
        return replace(self, **{name: getattr(self, name)[which] for name in names})


def draw(seed: int, rows: int = 24) -> Drawn:
    """Ragged rows, one of them empty; ratios far enough from 1 that clips and filters bite."""
    made = torch.Generator().manual_seed(seed)
    logits = torch.randn(CONTEXTS, WORDS, generator=made, dtype=torch.float64)
    contexts = torch.randint(CONTEXTS, (rows, TOKENS), generator=made)
    words = torch.randint(WORDS, (rows, TOKENS), generator=made)
    lengths = torch.randint(1, TOKENS + 1, (rows, 1), generator=made)
    lengths[rows // 2 :][:1] = 0
    logprobs = logits.log_softmax(-1)[contexts, words]
    return Drawn(
        logits,
        contexts,
        words,
        (torch.arange(TOKENS) < lengths).double(),
        logprobs + 0.5 * torch.randn(rows, TOKENS, generator=made, dtype=torch.float64),
        torch.randint(3, (rows, TOKENS), generator=made).double(),
        torch.randn(rows, 1, generator=made, dtype=torch.float64),
        logprobs + 0.5 * torch.randn(rows, TOKENS, generator=made, dtype=torch.float64),
    )


def rows_of(drawn: Drawn) -> Rows:
    """Return rows as a correction sees them that surveys a whole micro-batch, without gradient."""
    logprobs = drawn.logits.log_softmax(-1)[drawn.contexts].gather(2, drawn.words.unsqueeze(2)).squeeze(2)
    return Rows.masked(logprobs, drawn.behaviour, drawn.present, drawn.advantages, drawn.lags)


@dataclass(frozen=True)
class Taken:
    value: float
    gradient: torch.Tensor
    z: float
    sums: BatchSums


def take(objective: Objective, drawn: Drawn, entropy_coef: float = 0.1, dirt: float | None = None) -> Taken:
    """Return what rows add to an accumulator. `dirt` is put wherever a token is not the policy's."""
    logits = drawn.logits.clone().requires_grad_()
    scores = logits.log_softmax(-1)[drawn.contexts]
    logprobs = scores.gather(2, drawn.words.unsqueeze(2)).squeeze(2)
    entropy = -(scores.exp() * scores).sum(-1)
    behaviour, lags, reference = drawn.behaviour, drawn.lags, drawn.reference
    if dirt is not None:
        absent = drawn.present == 0
        logprobs, behaviour, lags, entropy, reference = (
            torch.where(absent, torch.full_like(table, dirt), table)
            for table in (logprobs, behaviour, lags, entropy, reference)
        )
    near = reference if objective.algorithm.kl.coefficient else None
    rows = Rows.masked(logprobs, behaviour, drawn.present, drawn.advantages, lags, near, since=1.0)
    shares = [objective.aggregate(int(n)) for n in drawn.present.sum(1)]
    coefficients = torch.tensor([[c] for c, _ in shares], dtype=torch.float64).view(-1, 1)
    value, sums = total(rows, entropy, coefficients, objective, entropy_coef)
    value.backward()
    return Taken(value.item(), logits.grad, sum(z for _, z in shares), sums)


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).norm() <= RELATIVE * b.norm().clamp(min=1e-300))


def check_objective(objective: Objective) -> None:
    """Run all checks of a loss, a correction and an average."""
    drawn = draw(1)
    whole = take(objective, drawn)
    assert whole.gradient.abs().sum() > 0
    check_bits(objective, drawn, whole)
    check_split(objective, drawn, whole)
    check_order(objective, drawn, whole)
    check_mask(objective, drawn, whole)
    check_degenerate(objective, drawn)
    check_isolation(objective, drawn)


def check_bits(objective: Objective, drawn: Drawn, whole: Taken) -> None:
    again = take(objective, drawn)
    assert (again.value, again.z, again.sums) == (whole.value, whole.z, whole.sums)
    assert torch.equal(again.gradient, whole.gradient)


def check_split(objective: Objective, drawn: Drawn, whole: Taken) -> None:
    """However rows are parted, the sums are the whole's: gradient, value, Z and figures."""
    rng, count = random.Random(2), len(drawn.contexts)
    for _ in range(3):
        order = rng.sample(range(count), count)
        cuts = [0, *sorted(rng.sample(range(1, count), rng.randint(1, 6))), count]
        parts = [take(objective, drawn.part(order[a:b])) for a, b in itertools.pairwise(cuts)]
        assert near(sum(part.gradient for part in parts), whole.gradient)
        assert math.isclose(sum(part.value for part in parts), whole.value, rel_tol=1e-11, abs_tol=1e-12)
        assert math.isclose(sum(part.z for part in parts), whole.z, rel_tol=RELATIVE)
        figures = BatchSums()
        for part in parts:
            figures = figures.plus(part.sums)
        assert all(math.isclose(a, b, rel_tol=1e-11, abs_tol=1e-12) for a, b in zip(figures, whole.sums, strict=True))


def check_order(objective: Objective, drawn: Drawn, whole: Taken) -> None:
    order = random.Random(3).sample(range(len(drawn.contexts)), len(drawn.contexts))
    found = take(objective, drawn.part(order))
    assert near(found.gradient, whole.gradient)
    assert math.isclose(found.z, whole.z, rel_tol=RELATIVE)


def check_mask(objective: Objective, drawn: Drawn, whole: Taken) -> None:
    """Whatever stands under the mask reaches neither loss nor gradient nor a figure, to the bit."""
    for dirt in (1e6, -1e6, math.nan, math.inf):
        found = take(objective, drawn, dirt=dirt)
        assert (found.value, found.sums) == (whole.value, whole.sums), dirt
        assert torch.equal(found.gradient, whole.gradient), dirt


def check_degenerate(objective: Objective, drawn: Drawn) -> None:
    """No rows, rows without tokens, and rows that all did equally well: nothing is learned, and nothing is NaN."""
    none = take(objective, drawn.part([]))
    assert (none.value, none.z) == (0.0, 0.0)
    silent = take(objective, replace(drawn, present=torch.zeros_like(drawn.present)))
    assert (silent.value, silent.z, silent.sums) == (0.0, 0.0, BatchSums())
    assert torch.count_nonzero(silent.gradient) == 0
    equal = take(objective, replace(drawn, advantages=torch.zeros_like(drawn.advantages)), entropy_coef=0.0)
    assert objective.algorithm.kl.coefficient or torch.count_nonzero(equal.gradient) == 0
    assert equal.z > 0
    far = replace(drawn, behaviour=drawn.behaviour.sign() * 3000.0)
    assert torch.isfinite(take(objective, far).gradient).all()


def check_isolation(objective: Objective, drawn: Drawn) -> None:
    """Rows of one policy, changed in every way, change nothing of another's."""
    numbers = range(len(drawn.contexts))
    mine, other = [n for n in numbers if n % 2], [n for n in numbers if n % 2 == 0]
    # Two policies of a run never meet in a batch; even beside each other their gradients keep to their own logits.
    apart = drawn.logits.repeat(2, 1)
    shifted = drawn.contexts.clone()
    shifted[other] += CONTEXTS
    both = replace(drawn, logits=apart, contexts=shifted)
    changed = replace(both, advantages=both.advantages.clone(), behaviour=both.behaviour.clone())
    changed.advantages[other] *= -7.0
    changed.behaviour[other] -= 2.0
    before, after = take(objective, both), take(objective, changed)
    assert torch.equal(before.gradient[:CONTEXTS], after.gradient[:CONTEXTS])
    assert not torch.equal(before.gradient[CONTEXTS:], after.gradient[CONTEXTS:])
    assert near(before.gradient[:CONTEXTS], take(objective, drawn.part(mine)).gradient)


def group(seed: int, members: int = 5, roles: Sequence[str] = ("a", "b")) -> list[EpisodeOutcome]:
    """Episodes of several lengths; now and then a role does not act at all."""
    rng = random.Random(seed)
    return [episode(rng, member, roles) for member in range(members)]


def episode(rng: random.Random, member: int, roles: Sequence[str]) -> EpisodeOutcome:
    samples = [
        SampleRef(role=role, turn=turn, tokens=rng.randint(1, 8), reward=rng.gauss(0.0, 1.0))
        for role in roles
        for turn in range(rng.randint(0, 3))
    ]
    return EpisodeOutcome(
        member=member,
        attempt=1,
        status=EpisodeStatus.FINISHED,
        team_score=rng.gauss(0.0, 1.0),
        scores={role: rng.gauss(0.0, 10.0) for role in roles},
        samples=tuple(samples),
    )


def settings_of(name: str) -> list[Advantage[Any]]:
    """Make an advantage with all mixtures of those of these settings that it has."""
    choices = {
        "team_share": (1.0, 0.0),
        "per_turn": (False, True),
        "divide_by_std": (False, True),
        "baseline_over": ("episodes", "rows"),
    }
    own = {key: values for key, values in choices.items() if key in ADVANTAGE.variants()[name].model_fields}
    mixtures = (dict(zip(own, values, strict=True)) for values in itertools.product(*own.values()))
    return [ADVANTAGES.make(ADVANTAGE.options(name, **mixture)) for mixture in mixtures]


def estimate(advantage: Advantage[Any], key: GroupKey, episodes: Sequence[EpisodeOutcome]) -> list[list[float]]:
    return advantage.estimate(key, episodes, [row_rewards(advantage.options, one) for one in episodes])


def check_estimator(name: str, key: GroupKey, need: Readiness, apart: bool) -> None:
    """Run all checks of an advantage under a group key; `apart`: that key never compares two roles."""
    for advantage in settings_of(name):
        episodes = group(4)
        values = estimate(advantage, key, episodes)
        assert values == estimate(advantage, key, episodes)
        assert [len(own) for own in values] == [len(one.samples) for one in episodes]
        order = random.Random(5).sample(range(len(episodes)), len(episodes))
        assert estimate(advantage, key, [episodes[n] for n in order]) == [values[n] for n in order]
        check_degenerate_groups(advantage, key, need)
        if apart:
            check_roles_apart(advantage, key)


def check_degenerate_groups(advantage: Advantage[Any], key: GroupKey, need: Readiness) -> None:
    assert estimate(advantage, key, []) == []
    single = [SampleRef(role="a", turn=0, tokens=3, reward=0.1)]
    alike = [
        EpisodeOutcome(
            member=n, attempt=1, status=EpisodeStatus.FINISHED, team_score=0.1, scores={"a": 0.1}, samples=tuple(single)
        )
        for n in range(3)
    ]
    compared = need is Readiness.GROUP
    for equal in (alike, alike[:1]):
        expected = 0.0 if compared else 0.1
        assert estimate(advantage, key, equal) == [[expected]] * len(equal)
    for wrong in (math.nan, math.inf):
        broken = alike[0].model_copy(
            update={
                "team_score": wrong,
                "scores": {"a": wrong},
                "samples": (single[0].model_copy(update={"reward": wrong}),),
            }
        )
        assert raises(lambda broken=broken: estimate(advantage, key, [broken, *alike[1:]]))


def raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except ValueError as error:
        return "finite" in str(error)
    return False


def check_roles_apart(advantage: Advantage[Any], key: GroupKey) -> None:
    """What one role earned, and whether it spoke at all, changes nothing of another's, unless the team's score does."""
    episodes = group(6)
    louder = [
        one.model_copy(
            update={
                "scores": one.scores | {"b": one.scores["b"] * 50.0},
                "samples": tuple(
                    sample.model_copy(update={"reward": sample.reward * 50.0}) if sample.role == "b" else sample
                    for sample in one.samples
                ),
            }
        )
        for one in episodes
    ]
    before, after = (estimate(advantage, key, each) for each in (episodes, louder))
    for one, old, new in zip(episodes, before, after, strict=True):
        assert [v for s, v in zip(one.samples, old, strict=True) if s.role == "a"] == [
            v for s, v in zip(one.samples, new, strict=True) if s.role == "a"
        ]


def check_shaper(shaper: Shaper[Any]) -> None:
    """Run all checks of a reward shaping: of one episode alone, aligned, in any order, raw rewards untouched."""
    limits = {"a": 8, "b": 6}
    for one in group(7):
        rewards = [sample.reward for sample in one.samples]
        found = shaper.shape(limits, one, rewards)
        assert found == shaper.shape(limits, one, rewards)
        assert len(found) == len(one.samples)
        assert all(map(math.isfinite, found))
        order = random.Random(8).sample(range(len(rewards)), len(rewards))
        turned = one.model_copy(update={"samples": tuple(one.samples[n] for n in order)})
        again = shaper.shape(limits, turned, [rewards[n] for n in order])
        assert again == [found[n] for n in order]
        assert rewards == [sample.reward for sample in one.samples]
    _check_shaped_groups(shaper, limits)


def _check_shaped_groups(shaper: Shaper[Any], limits: dict[str, int]) -> None:
    """Check a shaping of whole groups: aligned, in any order of members, and of none."""
    voted = [one.model_copy(update={"answer": "17"[n % 2] if n % 3 else ""}) for n, one in enumerate(group(7))]
    earned = [[sample.reward for sample in one.samples] for one in voted]
    found, order = shaper.shape_group(limits, voted, earned), random.Random(9).sample(range(len(voted)), len(voted))
    assert [len(own) for own in found] == [len(one.samples) for one in voted]
    turned = [voted[n] for n in order]
    assert shaper.shape_group(limits, turned, [earned[n] for n in order]) == [found[n] for n in order]
    assert (shaper.refusal(turned), shaper.figures(turned)) == (shaper.refusal(voted), shaper.figures(voted))
    assert earned == [[sample.reward for sample in one.samples] for one in voted]
    assert shaper.shape_group(limits, [], []) == []


def check_normaliser(normaliser: Callable[[Sequence[float]], list[float]]) -> None:
    """Run all checks of what is done once a batch is known."""
    rng = random.Random(9)
    values = [rng.gauss(0.0, 3.0) for _ in range(40)]
    found = normaliser(values)
    assert found == normaliser(values)
    order = rng.sample(range(40), 40)
    assert normaliser([values[n] for n in order]) == [found[n] for n in order]
    assert normaliser([]) == []
    for equal in ([0.5], [0.5] * 4):
        assert all(map(math.isfinite, normaliser(equal)))


def check_filter(chosen: GroupFilter[Any]) -> None:
    """A filter keeps what teaches something, decides alike each time, and draws again only if it refuses something."""
    assert chosen.keeps(Signal.USEFUL)
    assert [chosen.keeps(signal) for signal in Signal] == [chosen.keeps(signal) for signal in Signal]
    assert not chosen.draws_again or not all(map(chosen.keeps, Signal))
