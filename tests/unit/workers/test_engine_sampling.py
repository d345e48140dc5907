"""Counter-based sampling: reproducible, uniform, and true to the distribution."""

import numpy as np
import torch

from workers.rollout.engines.sampling import draw, uncertainty, uniforms


def numbers(seeds: list[int], counters: list[int]) -> list[float]:
    return uniforms(np.array(seeds, np.uint64), np.array(counters, np.int64)).tolist()


def test_a_number_depends_on_seed_and_counter_alone() -> None:
    alone = numbers([7], [3])
    among = numbers([1, 7, 9], [0, 3, 3])
    assert alone[0] == among[1]
    assert len({*among, *numbers([7, 7], [4, 5])}) == 5


def test_numbers_are_uniform_and_uncorrelated_between_neighbours() -> None:
    seeds, counters = np.meshgrid(np.arange(400), np.arange(250), indexing="ij")
    u = uniforms(seeds.ravel().astype(np.uint64), counters.ravel().astype(np.int64)).reshape(400, 250)
    assert u.min() > 0.0
    assert u.max() < 1.0
    counts, _ = np.histogram(u, bins=50, range=(0, 1))
    chi_square = float((((counts - u.size / 50) ** 2) / (u.size / 50)).sum())
    assert chi_square < 90, "49 degrees of freedom: 90 is one in 3000"
    for a, b in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.012


def test_draws_follow_the_masked_tempered_distribution() -> None:
    n = 40_000
    logits = torch.tensor([1.0, -torch.inf, 0.0, 2.0, -1.0]).repeat(n, 1)
    u = torch.from_numpy(uniforms(np.arange(n, dtype=np.uint64), np.zeros(n, np.int64)))
    tokens, logprobs = draw(logits, u, torch.full((n,), 2.0), torch.zeros(n, dtype=torch.bool))
    expected = torch.softmax(logits[0] / 2.0, -1)
    found = torch.bincount(tokens, minlength=5) / n
    assert found[1] == 0.0
    assert (found - expected).abs().max() < 0.01
    assert torch.allclose(logprobs, expected.log()[tokens], atol=1e-6)


def test_greedy_rows_take_the_most_likely_token() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    u = torch.tensor([0.999999, 0.999999], dtype=torch.float64)
    tokens, logprobs = draw(logits, u, torch.ones(2), torch.tensor([True, False]))
    assert tokens.tolist() == [1, 2]
    assert torch.allclose(logprobs, torch.log_softmax(logits[0], -1)[tokens])


def test_extreme_numbers_stay_inside_the_vocabulary_and_the_mask() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -30.0, -torch.inf]]).repeat(2, 1)
    u = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    tokens, _ = draw(logits, u)
    assert set(tokens.tolist()) <= {1, 2}


def test_the_uncertainty_of_n_equal_tokens_is_ln_n_and_masked_ones_have_no_part() -> None:
    for n in (1, 2, 7, 40):
        logits = torch.full((1, 64), -torch.inf)
        logits[0, 10 : 10 + n] = 3.0
        entropy, likeliest, five = uncertainty(logits, torch.ones(1))[0].tolist()
        assert abs(entropy - np.log(n)) < 1e-5
        assert abs(likeliest - 1 / n) < 1e-6
        assert abs(five - min(1.0, 5 / n)) < 1e-5


def test_uncertainty_is_of_the_tempered_distribution() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0, 0.5, 1.0, -3.0, 0.1]]).repeat(2, 1)
    found = uncertainty(logits, torch.tensor([1.0, 2.0]))
    for row, heat in enumerate((1.0, 2.0)):
        chances = torch.softmax(logits[row] / heat, -1)
        expected = [-(chances * chances.log()).sum(), chances.max(), chances.sort().values[-5:].sum()]
        assert torch.allclose(found[row], torch.stack(expected), atol=1e-6)
