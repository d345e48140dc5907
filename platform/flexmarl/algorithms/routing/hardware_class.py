"""Long prompts go to devices that compute fast, long replies to devices that read memory fast.

Devices are told apart by the class that their node declares. A request's class is its prompt over its expected reply.
CPU shares take what is left over; with no engine of the wanted class, or an overloaded one, any will do.
"""

from collections.abc import Sequence

from flexmarl.algorithms.routing.base import MARGIN, Choice, EngineLoad, Reason, Router, RouteRequest, chosen, emptiest
from flexmarl.contracts.hardware import Hardware
from flexmarl.contracts.specification.routers import HardwareClassOptions

PREFILL_HEAVY = 8.0
"""Prompt tokens per reply token: a prompt token costs about a tenth of one that is decoded."""


def wanted(request: RouteRequest) -> Hardware:
    """Return the class that suits a request."""
    heavy = request.prompt_tokens >= PREFILL_HEAVY * max(1.0, request.reply_tokens)
    return Hardware.PREFILL if heavy else Hardware.DECODE


class HardwareClass(Router[HardwareClassOptions]):
    Options = HardwareClassOptions

    def choose(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> Choice:
        """Pick the least loaded engine of the class that suits, else of any accelerator, else of all."""
        least, kind = emptiest(engines), wanted(request)
        suits = [load for load in engines if load.hardware is kind]
        near = suits or [load for load in engines if load.hardware is not Hardware.CPU]
        if not near:
            return chosen(least, Reason.NO_SUCH_HARDWARE, engines)
        best = emptiest(near)
        if best.outstanding > least.outstanding + MARGIN:
            return chosen(least, Reason.OVERLOADED, engines)
        return chosen(best, Reason.HARDWARE if suits else Reason.NO_SUCH_HARDWARE, engines)
