"""What of a specification nobody could host: pools that do not exist, an engine that no node of its pool has, or one of
more devices than any of its hosts, and containers where no node of its pool starts any.

Invariant: what is refused is known to be missing. A node that does not say which engines it has may have any, and a
pool without a node says nothing; whether devices are free now is another question (`plan_tokens.devices`).
"""

from collections.abc import Iterator

from flexmarl.contracts.engine_rules import numbers
from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.commands import CommandRunner
from flexmarl.contracts.specification.program import ProgramEnvironment
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
    yield from _wide(spec)
    yield from _apart(spec)
    yield from _contained(spec)


def _contained(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return a refusal for commands in containers, of which the nodes of the pool start none."""
    environment, pool = spec.environment, spec.resources.rollout_pool
    runner = environment.runner if isinstance(environment, ProgramEnvironment) else None
    if not isinstance(runner, CommandRunner) or runner.container is None:
        return
    if inventory.starts_containers(pool) is False:
        yield Problem(
            pointer="/environment/runner/container",
            code="no_containers",
            detail=f"No node of the pool {pool} starts containers.",
            hint="Install podman on its hosts and start their workers anew, as root; or leave container out.",
        )


def _apart(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return a refusal for trainers whose weights others need, on nodes that nobody reads, and no node to keep them."""
    training, rollout = spec.resources.training_pool, spec.resources.rollout_pool
    apart = training != rollout and inventory.is_behind_the_door(training)
    if spec.own_trainers and (apart or inventory.homes_end(training)) and not inventory.can_keep():
        either = f", or set rollout_pool to {training} as well" if apart and not inventory.homes_end(training) else ""
        yield Problem(
            pointer="/resources/training_pool",
            code="pool_unreachable",
            detail=f"{training} is a pool of nodes with tokens, which send the weights that they make to a node with "
            "the installation's secrets, and none is registered.",
            hint=f"Start a node agent beside the control plane{either}.",
        )


def _wide(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return a refusal for an engine of more devices than any host of its pool has."""
    resources = spec.resources
    most = max(inventory.host_sizes(resources.rollout_pool), default=0)
    if 0 < most < resources.engine_devices:
        asked = (resources.least_rollout_devices, resources.most_rollout_devices)
        legal = [count for count in range(1, most + 1) if not any(devices % count for devices in asked)]
        yield Problem(
            pointer="/resources/engine_devices",
            code="no_such_host",
            detail=f"An engine has its {resources.engine_devices} devices on one host; the largest host of "
            f"{resources.rollout_pool} has {most}.",
            hint=f"Set {numbers(legal)}, or use a pool of larger hosts.",
        )
