"""AdamW on one flat buffer: the update of `torch.optim.AdamW`, in one pass over a policy's memory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import AdamW

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
        import torch
        from torch.optim.adamw import adamw

        own = self._settings
        taken = torch.tensor(float(self.steps), device=self._master.device)
        self.steps += 1
        adamw(
            [self._master], [gradient], [self.first], [self.second], [], [taken],
            fused=True, amsgrad=False, maximize=False, beta1=own.beta1, beta2=own.beta2, lr=learning_rate,
            weight_decay=own.weight_decay, eps=EPSILON,
        )  # fmt: skip

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
