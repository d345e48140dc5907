"""AdamW on one flat buffer: the same update as `torch.optim.AdamW`, in a handful of operations per policy."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flexmarl.contracts.spec.team import AdamW

if TYPE_CHECKING:
    import torch

EPSILON = 1e-8


class FlatAdamW:
    """Moments of one policy. Weight decay is decoupled and reaches every weight."""

    def __init__(self, master: "torch.Tensor", settings: AdamW) -> None:
        import torch

        self._master = master
        self._settings = settings
        self.steps = 0
        self.first = torch.zeros_like(master)
        self.second = torch.zeros_like(master)

    def step(self, gradient: "torch.Tensor", learning_rate: float) -> None:
        """Move the weights along a gradient that is already normalised and clipped."""
        own = self._settings
        self.steps += 1
        self._master.mul_(1.0 - learning_rate * own.weight_decay)
        self.first.lerp_(gradient, 1.0 - own.beta1)
        self.second.mul_(own.beta2).addcmul_(gradient, gradient, value=1.0 - own.beta2)
        spread = self.second.sqrt().div_((1.0 - own.beta2**self.steps) ** 0.5).add_(EPSILON)
        self._master.addcdiv_(self.first, spread, value=-learning_rate / (1.0 - own.beta1**self.steps))

    def state(self) -> "dict[str, torch.Tensor]":
        """Return what a restored optimizer needs to continue bit for bit."""
        import torch

        return {"first": self.first, "second": self.second, "steps": torch.tensor([self.steps])}

    def reset(self) -> None:
        """Begin anew."""
        self.steps = 0
        self.first.zero_()
        self.second.zero_()

    def restore(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Continue from what `state` returned."""
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        self.steps = int(state["steps"])
