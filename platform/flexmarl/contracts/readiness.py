"""When a sample is ready: what a plug-in must know before the loss of a row can be taken.

Invariant: a row is cut only when the coarsest plug-in of the run has what it needs. A plug-in that needs the whole
batch leaves nothing to stream, so only the protocol `batch` serves it (a rule of the specification).
"""

from flexmarl.contracts.plugins import Readiness
from flexmarl.contracts.specification.experiment import ExperimentSpec


def needs(spec: ExperimentSpec) -> dict[str, Readiness]:
    """Return what each plug-in of a run needs, by the pointer of its field."""
    found = {
        "/algorithm/advantage/type": spec.algorithm.advantage.needs,
        "/sampling/group_filter/type": spec.sampling.group_filter.needs,
        "/algorithm/shaping/type": spec.algorithm.shaping.needs,
        "/sampling/arranger/type": spec.sampling.arranger.needs,
    }
    if spec.sampling.keep_members is not None:
        found["/sampling/keep_members"] = Readiness.GROUP
    if spec.sampling.turn_quantile:
        found["/sampling/turn_quantile"] = Readiness.GROUP
    return found


def less_demanding(pointer: str) -> str:
    """Return a plug-in that needs no whole batch, for the field of one that does."""
    return "grpo" if pointer.startswith("/algorithm/advantage") else "none"


def readiness(spec: ExperimentSpec) -> Readiness:
    """Return when a row of a run is ready: as soon as its most demanding plug-in has all it needs."""
    return max(needs(spec).values(), key=lambda need: need.coarseness)
