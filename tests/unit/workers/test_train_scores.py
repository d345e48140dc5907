"""Scores at the head are those of a log-softmax over whole logits, in value and gradient, chunk by chunk."""

import pytest
import torch

from workers.training import scores as scores_module
from workers.training.scores import Bend, ScoreRequest, scores

N, WIDTH, WORDS, DRAWN = 37, 16, 301, 90


def drawn(dtype: torch.dtype, heated: bool, masked: bool) -> tuple[torch.Tensor, torch.Tensor, ScoreRequest]:
    made = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, WIDTH, generator=made).to(dtype)
    head = (0.25 * torch.randn(WORDS, WIDTH, generator=made)).to(dtype)
    at = torch.randint(0, N, (DRAWN,), generator=made).sort().values
    tokens = torch.randint(0, WORDS // 2, (DRAWN,), generator=made)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    masks = torch.zeros(2, WORDS, dtype=exact)
    masks[1, WORDS // 2 :] = -1e9
    heat = 0.5 + torch.rand(N, 1, generator=made).to(exact)
    sets = torch.arange(N) % 2
    return (
        hidden,
        head,
        ScoreRequest(at, tokens, heat if heated else None, *((masks, sets) if masked else (None, None))),
    )


def plainly(hidden: torch.Tensor, head: torch.Tensor, asked: ScoreRequest) -> tuple[torch.Tensor, torch.Tensor]:
    logits = hidden @ head.t()
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if asked.temperature is not None:
        logits = logits / asked.temperature
    if asked.masks is not None:
        logits = logits + asked.masks[asked.mask_of]
    logs = logits.log_softmax(-1)
    return logs[asked.at, asked.tokens], -(logs.exp() * logs).sum(-1)


def _exactly(asked: ScoreRequest) -> ScoreRequest:
    heat, masks = (None if table is None else table.double() for table in (asked.temperature, asked.masks))
    return ScoreRequest(asked.at, asked.tokens, heat, masks, asked.mask_of)


def gradients(way, dtype: torch.dtype, entropy_coef: float, exactly: bool = False, **about: bool) -> list[torch.Tensor]:
    hidden, head, asked = drawn(torch.float32 if exactly else dtype, **about)
    if exactly:
        hidden, head, asked = hidden.double(), head.double(), _exactly(asked)
    leaves = [hidden.requires_grad_(), head.requires_grad_()]
    logprobs, entropy = way(*leaves, asked)
    value = (logprobs.exp() * torch.linspace(-1.0, 1.0, DRAWN)).sum()  # each token pulls another way
    if entropy_coef:
        value = value - entropy_coef * (entropy * torch.linspace(0.0, 1.0, N)).sum()
    value.backward()
    return [logprobs.detach(), entropy.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("chunk", [2**22, 5 * WORDS, 1], ids=["one", "some", "each position"])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.3])
@pytest.mark.parametrize("about", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["fp32", "fp64"])
def test_scores_and_gradients_are_those_of_whole_logits(
    dtype: torch.dtype, limit: float, about: tuple, entropy_coef: float, chunk: int, monkeypatch
):
    monkeypatch.setattr(scores_module, "CHUNK", chunk)
    settings = dict(zip(("heated", "masked"), about, strict=True))
    found = gradients(scores, dtype, entropy_coef, **settings)
    expected = gradients(plainly, dtype, entropy_coef, dtype == torch.float32, **settings)
    for own, other in zip(found, expected, strict=True):
        assert own.dtype == dtype
        assert (own - other).norm() <= limit * other.norm()


@pytest.mark.parametrize("slab", [2048, 100], ids=["whole", "slabs"])
def test_in_bf16_all_but_the_product_is_fp32(slab: int, monkeypatch: pytest.MonkeyPatch):
    """A gradient summed over many chunks in bf16 would lose most of its digits."""
    monkeypatch.setattr(scores_module, "SLAB", slab)
    found = gradients(scores, torch.bfloat16, 0.3, heated=True, masked=True)
    expected = gradients(plainly, torch.bfloat16, 0.3, heated=True, masked=True)
    assert [each.dtype for each in found] == [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]
    for own, other in zip(found, expected, strict=True):
        assert (own.float() - other.float()).norm() <= 1e-2 * other.float().norm()


def test_no_table_is_longer_than_a_chunk(monkeypatch: pytest.MonkeyPatch):
    """What is kept until the backward pass does not grow with the vocabulary once there are several chunks."""
    monkeypatch.setattr(scores_module, "CHUNK", 5 * WORDS)
    widest = []
    exact = scores_module._log_softmax

    def measured(*args: object) -> torch.Tensor:
        found = exact(*args)
        widest.append(found.numel())
        return found

    monkeypatch.setattr(scores_module, "_log_softmax", measured)
    kept = []
    hidden, head, asked = drawn(torch.float32, heated=False, masked=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        logprobs, _ = scores(hidden.requires_grad_(), head.requires_grad_(), asked)
    logprobs.sum().backward()
    assert max(widest) <= 5 * WORDS < N * WORDS
    assert len(widest) >= 2 * N // 5, "each chunk is computed again for the backward pass"
    assert max(kept) == WORDS * WIDTH, "the head itself, which is there anyway"


@pytest.mark.parametrize("chunk", [2**22, 5 * WORDS], ids=["one", "some"])
@pytest.mark.parametrize("bend", [Bend(scale=0.25), Bend(cap=2.0), Bend(scale=3.0, cap=1.5)], ids=str)
@pytest.mark.parametrize("entropy_coef", [0.0, 0.3])
def test_heads_that_scale_and_cap_their_logits_are_computed_with(
    bend: Bend, chunk: int, entropy_coef: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scores_module, "CHUNK", chunk)

    def own(hidden: torch.Tensor, head: torch.Tensor, asked: ScoreRequest) -> tuple[torch.Tensor, torch.Tensor]:
        return scores(hidden, head, asked, bend)

    def composed(hidden: torch.Tensor, head: torch.Tensor, asked: ScoreRequest) -> tuple[torch.Tensor, torch.Tensor]:
        logits = bend.scale * (hidden @ head.t())
        logits = logits if bend.cap is None else bend.cap * torch.tanh(logits / bend.cap)
        logs = (logits / asked.temperature + asked.masks[asked.mask_of]).log_softmax(-1)
        return logs[asked.at, asked.tokens], -(logs.exp() * logs).sum(-1)

    found = gradients(own, torch.float64, entropy_coef, heated=True, masked=True)
    expected = gradients(composed, torch.float64, entropy_coef, heated=True, masked=True)
    for mine, other in zip(found, expected, strict=True):
        assert (mine - other).norm() <= 1e-12 * other.norm()
