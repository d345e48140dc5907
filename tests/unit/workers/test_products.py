"""Products of bf16 on processors without instructions for it: as exact as torch's own, with their gradients."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from workers.models import products

PARTS = torch.Generator().manual_seed(0)
ROUNDING = 2.0**-8
"""bf16 has 8 significant bits."""


@pytest.fixture(scope="module", autouse=True)
def widened() -> None:
    """Replace the kernels, also where the processor has its own."""
    products._install()


def made(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=PARTS).bfloat16()


def near(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Tell whether values are what they are exactly, rounded once; sums in fp32 cost nearly nothing."""
    return bool(((found.double() - exact).abs() <= exact.abs() * ROUNDING + 1e-4 * exact.abs().max()).all())


A, B, BIAS, VECTOR = made(33, 70), made(70, 48), made(48), made(70)
STACK, OTHERS, SUMS = made(3, 33, 70), made(3, 70, 48), made(3, 33, 48)


@pytest.mark.parametrize(
    ("computed", "given"),
    [
        (lambda a, b: a @ b, (A, B)),
        (lambda a, b: a @ b.t().contiguous().t(), (A, B)),
        (lambda a, b, c: F.linear(a, b.t(), c), (A, B, BIAS)),
        (lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2.0), (A, B, BIAS)),
        (lambda a, b, c: c.clone().expand(33, 48).contiguous().addmm_(a, b), (A, B, BIAS)),
        (lambda a, b: torch.mm(a, b, out=torch.empty(33, 48, dtype=a.dtype)), (A, B)),
        (lambda a, v: a @ v, (A, VECTOR)),
        (torch.bmm, (STACK, OTHERS)),
        (lambda s, a, b: torch.baddbmm(s, a, b, alpha=0.3), (SUMS, STACK, OTHERS)),
        (lambda s, a, b: s.clone().baddbmm_(a, b, alpha=0.3), (SUMS, STACK, OTHERS)),
    ],
)
def test_a_product_is_the_exact_one_rounded_once(
    computed: Callable[..., torch.Tensor], given: tuple[torch.Tensor, ...]
) -> None:
    found, exact = computed(*given), computed(*(each.double() for each in given))
    assert found.dtype == torch.bfloat16
    assert near(found, exact)


def test_a_product_in_place_writes_into_the_tensor_it_was_given() -> None:
    sums = torch.zeros(33, 48, dtype=torch.bfloat16)
    assert sums.addmm_(A, B) is sums
    out = torch.empty(3, 33, 48, dtype=torch.bfloat16)
    assert torch.bmm(STACK, OTHERS, out=out) is out
    assert near(out, STACK.double() @ OTHERS.double())


def test_gradients_of_a_layer_are_the_exact_ones() -> None:
    x, weight = A.clone().requires_grad_(), B.t().contiguous().requires_grad_()
    above = made(33, 48)
    F.linear(x, weight, BIAS).backward(above)
    assert x.grad is not None
    assert weight.grad is not None
    assert near(x.grad, above.double() @ weight.double())
    assert near(weight.grad, above.double().t() @ x.double())


@pytest.mark.parametrize("masked", [False, True])
def test_attention_and_its_gradients_are_near_the_exact_ones(masked: bool) -> None:
    heads = [made(2, 6, 40, 16), made(2, 2, 40, 16), made(2, 2, 40, 16)]
    mask = torch.ones(2, 1, 40, 40, dtype=torch.bool).tril() if masked else None
    above = made(2, 6, 40, 16)

    def attended(dtype: torch.dtype) -> list[torch.Tensor]:
        given = [each.to(dtype, copy=True).requires_grad_() for each in heads]
        found = F.scaled_dot_product_attention(*given, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        found.backward(above.to(dtype))
        assert found.dtype == dtype
        return [found.detach(), *(each.grad for each in given if each.grad is not None)]

    for found, exact in zip(attended(torch.bfloat16), attended(torch.float64), strict=True):
        assert float((found.double() - exact).norm() / exact.norm()) < 2 * ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_products_of_other_types_stay_the_bits_they_are(dtype: torch.dtype) -> None:
    a, b = (each.float().mul(8).round().to(dtype) for each in (A, B))
    assert torch.equal(a @ b, (a.unsqueeze(2) * b.unsqueeze(0)).sum(1))
    assert (a @ b).dtype == dtype
