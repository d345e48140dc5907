"""Training rows made up from a seed: lengths, masks, temperatures and weights differ."""

import numpy as np

from workers.training.wire import TrainRow


def rows_of(seed: int, count: int, words: int = 16, longest: int = 8) -> list[TrainRow]:
    """Return rows over the first `words` ids."""
    rng = np.random.default_rng(seed)
    return [_row(rng, number, words, longest) for number in range(count)]


def _row(rng: np.random.Generator, number: int, words: int, longest: int) -> TrainRow:
    prompt, response = (rng.integers(1, words, rng.integers(1, longest)).astype("<i4") for _ in range(2))
    allowed = np.unique(np.concatenate((response, [3, 5]))).astype("<i4") if number % 3 == 0 else np.array([], "<i4")
    return TrainRow(
        prompt=prompt.tobytes(),
        response=response.tobytes(),
        logprobs=(-2.5 + 0.5 * rng.standard_normal(len(response))).astype("<f4").tobytes(),
        allowed=allowed.tobytes(),
        temperature=(1.0, 0.7)[number % 2],
        advantages=[float(rng.standard_normal())],
        weight=(1.0, 0.5)[number % 4 // 2],
    )
