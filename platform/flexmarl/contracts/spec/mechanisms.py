"""One slot per mechanism of the orchestrator. A preset picks one option each: a published system is a preset."""

from typing import Literal

from pydantic import Field

from flexmarl.contracts.base import Strict


class LagPolicy(Strict):
    bound: int = Field(default=0, ge=0, le=64)
    """Highest allowed own lag in versions; 0 is strictly on-policy on cohorts."""
    at_admission: Literal["admit"] = "admit"
    in_flight: Literal["finish"] = "finish"
    at_cut: Literal["wait"] = "wait"


class Mechanisms(Strict):
    lag_policy: LagPolicy = LagPolicy()
    redundancy: Literal["none"] = "none"
    router: Literal["least_loaded"] = "least_loaded"
    mover: Literal["static"] = "static"
    publication: Literal["cohort", "wavefront", "delayed"] = "cohort"
    """When the next cohort may start: `cohort` once every policy's new weights are served, `wavefront` once those of
    its first turns are (a later turn waits for its own policy only), `delayed` on the weights of one step before."""
    trainer_protocol: Literal["micro_batch", "batch", "mini_batch", "per_group"] = "micro_batch"
    """`micro_batch` accumulates gradients while the rest of the cohort still plays, `per_group` group by group; `batch`
    waits for all of it; `mini_batch` takes `batch.mini_batches` optimizer steps per cohort, each as soon as it can."""
    policy_clock: bool = False
    """Each policy steps by its own counter, as soon as `batch.min_rows` of its rows are accumulated; rows of the old
    version that settle later are dropped as overtaken. Off: every policy steps once per cohort."""
    allocation: Literal["static"] = "static"
    arbiter: Literal["fifo"] = "fifo"
    ordered: bool = False
    """Cut micro-batches by draw number instead of by arrival, so that sums are taken in one fixed order."""
