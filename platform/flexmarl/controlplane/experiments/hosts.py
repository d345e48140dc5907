"""What of a specification nobody could host: pools that do not exist, and an engine that no node of its pool has.

Invariant: what is refused is known to be missing. A node that does not say which engines it has may have any, and a
pool without a node says nothing; whether devices are free now is another question (`plan_tokens.devices`).
"""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.experiments.pools import MEMBERS
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.inventory.models import INSTALLATION_POOL


def unhostable(spec: ExperimentSpec, project: str) -> Iterator[Problem]:
    """Return a refusal for each pool that there is none of, and for an engine that its pool's nodes lack."""
    known = sorted({*inventory.pool_names(), INSTALLATION_POOL})
    usable = [name for name in known if not project or inventory.may_use(project, name)]
    for member in MEMBERS:
        pool = getattr(spec.resources, member)
        if pool not in known:
            close = nearest(pool, usable)
            yield Problem(
                pointer=f"/resources/{member}",
                code="unknown_pool",
                detail=f"Pool {pool} does not exist or has no device.",
                hint=f"Did you mean {close}?" if close else f"Pools: {', '.join(usable)}.",
            )
    engine, pool = spec.resources.engine, spec.resources.rollout_pool
    offered = inventory.engines_of(pool)
    if offered is not None and engine not in offered:
        yield Problem(
            pointer="/resources/engine",
            code="no_such_engine",
            detail=f"No node of the pool {pool} has the engine {engine}.",
            hint=f"Set {' or '.join(sorted(offered))}, or set FLEXMARL_VLLM_PYTHON on a node of that pool.",
        )
