"""When a sample is ready: what a plug-in must know before the loss of a row can be taken.

Invariant: a row is cut only when the coarsest plug-in of the run has what it needs. A plug-in that needs the whole
batch leaves nothing to stream, so only the protocol `batch` serves it (a rule of the specification).
"""

from enum import StrEnum

from flexmarl.contracts.spec.experiment import ExperimentSpec


class Readiness(StrEnum):
    """What must be complete, finest first."""

    ROW = "row"
    EPISODE = "episode"
    GROUP = "group"
    BATCH = "batch"

    @property
    def coarseness(self) -> int:
        """Return its place in the order of the members."""
        return list(Readiness).index(self)


ADVANTAGE_NEEDS: dict[str, Readiness] = {
    "grpo": Readiness.GROUP,
    "rloo": Readiness.GROUP,
    "reinforce": Readiness.EPISODE,
    "reinforce_pp": Readiness.BATCH,
    "best_worst": Readiness.GROUP,
    "gae": Readiness.EPISODE,
}
"""Advantage estimator -> what it compares a row with."""

FILTER_NEEDS: dict[str, Readiness] = {
    "none": Readiness.ROW,
    "drop_zero_variance": Readiness.GROUP,
    "dynamic_sampling": Readiness.GROUP,
}
"""Group filter -> what it looks at."""


def needs(spec: ExperimentSpec) -> dict[str, Readiness]:
    """Return what each plug-in of a run needs, by the pointer of its field."""
    advantage, group_filter = spec.algorithm.advantage, spec.sampling.group_filter
    found = {
        "/algorithm/advantage/type": ADVANTAGE_NEEDS[advantage.type],
        "/sampling/group_filter": FILTER_NEEDS[group_filter],
    }
    if spec.algorithm.shaping.type != "none":
        found["/algorithm/shaping/type"] = Readiness.EPISODE
    if spec.sampling.keep_members is not None:
        found["/sampling/keep_members"] = Readiness.GROUP
    return found


def readiness(spec: ExperimentSpec) -> Readiness:
    """Return when a row of a run is ready: as soon as its most demanding plug-in has all it needs."""
    return max(needs(spec).values(), key=lambda need: need.coarseness)
