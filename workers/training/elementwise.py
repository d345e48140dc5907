"""What a decoder does element by element, with backward passes that keep and touch less memory than composed ones.

Invariant: values and gradients are those of the composed operations (tested). On a CPU such steps cost what the memory
costs that they read and write.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def rotate(x: "torch.Tensor", cos: "torch.Tensor", sin: "torch.Tensor") -> "torch.Tensor":
    """Turn each head's pairs (first half, second half) of [N, heads, width] by its position's angles [N, 1, width]."""
    turned: torch.Tensor = _rotation().apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return turned


def gated(gate_up: "torch.Tensor") -> "torch.Tensor":
    """Return silu(first half) * second half of the last dimension."""
    product: torch.Tensor = _gate().apply(gate_up)  # type: ignore[no-untyped-call]
    return product


def _turned(x: "torch.Tensor", cos: "torch.Tensor", sin: "torch.Tensor", back: bool) -> "torch.Tensor":
    import torch

    half, way = x.shape[-1] // 2, -1.0 if back else 1.0
    turned = torch.mul(x, cos)
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-way)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:], value=way)
    return turned


@cache
def _rotation() -> "type[torch.autograd.Function]":
    import torch

    class Rotation(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(cos, sin)
            return _turned(x, cos, sin, back=False)

        @staticmethod
        def backward(ctx: Any, *above: torch.Tensor) -> Any:
            cos, sin = ctx.saved_tensors
            return _turned(above[0], cos, sin, back=True), None, None

    return Rotation


@cache
def _gate() -> "type[torch.autograd.Function]":
    import torch
    from torch.nn import functional as F

    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(gate_up)
            gate, up = gate_up.chunk(2, -1)
            return F.silu(gate).mul_(up)

        @staticmethod
        def backward(ctx: Any, *above: torch.Tensor) -> torch.Tensor:
            (gate_up,) = ctx.saved_tensors
            gate, up = gate_up.chunk(2, -1)
            slope = torch.empty_like(gate_up)
            of_gate, of_up = slope.chunk(2, -1)
            torch.mul(F.silu(gate), above[0], out=of_up)
            torch.ops.aten.silu_backward.grad_input(above[0] * up, gate, grad_input=of_gate)
            return slope

    return Gate
