"""Where a reply is continued at a token: ECHO's rule (arXiv 2602.02150), with thresholds that the run's own tokens set.

Each token has the entropy of the distribution that it was drawn from, a confidence, which is the mean mass of its
likeliest tokens and of those of the tokens before it, and a jump: by how much the entropy is above that of the token
before. The published constants were tuned on figures that mean something else (an entropy of ten log-probabilities is
at most ln 10 and shall exceed 3.5), so they never fire. Here they are quantiles of the tokens that the run sampled
last, and before any are known nothing is continued.

Pure: no clock, no chance. Invariant: thresholds depend on no order in which the groups of a step arrived.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flexmarl.algorithms.prefix_predictor import Example, PrefixBelief
from flexmarl.contracts.specification.branch_controllers import EchoOptions
from flexmarl.contracts.wire import EpisodeOutcome, TokenSignal

if TYPE_CHECKING:
    import numpy.typing as npt

    Signals = npt.NDArray[np.float64]
    """[tokens, 3]: entropy, confidence and jump of each, as in a `TokenSignal`"""

WINDOW = 4
"""Tokens whose confidence is averaged."""
LEAST_DEPTH = 4
"""Tokens of a reply before the first one at which it is continued."""
KEPT = 1024
"""Tokens from which thresholds are taken."""
TOLD = 64
"""Tokens of an episode that the core hears of."""
BY_ENTROPY, BY_CONFIDENCE = 2.0, 1.0
"""How much the width of a branch grows with either, as published."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    high: float
    """Entropy from which a token is in doubt."""
    low: float
    """Entropy of a token that is in no doubt."""
    confidence: float
    """Confidence up to which it is."""
    jump: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Thresholds | None":
        """Return those that a command carries; None where nothing is known yet."""
        return cls(*values) if values else None


def signals_of(uncertainty: Sequence[float], likeliest: int) -> "Signals":
    """Return what an engine told of a reply's tokens (`wire.CompletionChoice`) as signals; `likeliest`: 1 or 5."""
    table = np.array(uncertainty, np.float64).reshape(-1, 3)
    mass, summed = table[:, 1 if likeliest == 1 else 2], np.zeros(len(table))
    for back in range(WINDOW - 1, -1, -1):  # the oldest first
        summed[back:] += mass[: len(mass) - back]
    found = np.zeros((len(table), 3))
    found[:, 0] = table[:, 0]
    found[:, 1] = summed / np.minimum(np.arange(1, len(table) + 1), WINDOW)
    found[1:, 2] = table[1:, 0] - table[:-1, 0]
    return found


def first_in_doubt(signals: "Signals", thresholds: Thresholds) -> int | None:
    """Return the first token of a reply at which it may be continued; None where there is none."""
    entropy, confidence, jump = signals[LEAST_DEPTH:].T
    doubtful = (entropy >= thresholds.high) & (confidence <= thresholds.confidence) & (jump >= thresholds.jump)
    places = np.flatnonzero(doubtful)
    return LEAST_DEPTH + int(places[0]) if len(places) else None


def width_of(signal: TokenSignal, thresholds: Thresholds, most: int) -> int:
    """Return how many go on at a token, from 1 to `most`."""
    spread, scale = thresholds.high - thresholds.low, abs(thresholds.confidence)
    entropy = (signal.entropy - thresholds.low) / spread if spread > 0 else 1.0
    confidence = (signal.confidence - thresholds.confidence) / scale if scale > 0 else 0.0
    return min(max(round(1 + BY_ENTROPY * entropy - BY_CONFIDENCE * confidence), 1), most)


def spread(signals: "Signals") -> tuple[TokenSignal, ...]:
    """Return at most `TOLD` of an episode's signals, evenly spread."""
    stride = max(1, -(-len(signals) // TOLD))
    return tuple(map(TokenSignal._make, signals[::stride].tolist()))


def seen_in(episodes: Sequence[EpisodeOutcome]) -> list[Example]:
    """Return the signals of a group's first episodes as plain values, member by member."""
    return [list(signal) for one in sorted(episodes, key=lambda one: one.member) for signal in _told_by(one)]


def _told_by(episode: EpisodeOutcome) -> Iterator[TokenSignal]:
    if episode.branch is not None and episode.branch.root < 0:
        yield from episode.branch.signals


def learn_thresholds(belief: PrefixBelief, cohort: int, options: EchoOptions) -> None:
    """Take the quantiles of the last tokens, those of a cohort among them, draw by draw in their order."""
    groups = belief.waiting.pop(cohort, {})
    seen = [signal for draw in sorted(groups) for signal in groups[draw]]
    belief.recent = [*belief.recent, *seen][-KEPT:]
    if not belief.recent:
        return
    entropy, confidence, jump = np.array(belief.recent, np.float64).T
    high, low = np.quantile(entropy, (options.high_quantile, options.low_quantile))
    least, most = np.quantile(jump, options.jump_quantile), np.quantile(confidence, options.confidence_quantile)
    belief.weights = [float(high), float(low), float(most), float(least)]
