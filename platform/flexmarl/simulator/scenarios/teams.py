"""The workload and the pace that a specification itself states: turns, declared waits and service times.

What nobody declares is left to the caller: how fast engines, unpaced trainers and the platform are.
"""

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.environment import Arithmetic, EnvironmentSpec, HotCold, Kitchen
from flexmarl.contracts.specification.environment_base import Latency
from flexmarl.simulator.scenarios.scenario import Machine, RoleLoad, Spread, Stages, Workload

PROMPT = 32
"""Tokens of a prompt of the built-in environments, about."""


def workload_of(spec: ExperimentSpec) -> Workload:
    """Return the workload of an experiment whose episodes take as many turns as they can."""
    facts = {role.name: role for role in spec.environment.facts().roles}
    roles = {
        name: RoleLoad(
            prompt=Spread(mean=PROMPT), reply=Spread(mean=facts[name].reply_tokens or spec.longest_reply(name))
        )
        for name in spec.agents
    }
    latency = spec.environment.latency
    return Workload(
        stages=tuple(stage for asked in _stages(spec.environment) if (stage := tuple(r for r in asked if r in roles))),
        roles=roles,
        environment=Spread() if latency is None else _waits(latency),
        slow_start=Spread() if latency is None else Spread(slow_share=latency.slow_share, slow=latency.slow_s),
    )


def paced(spec: ExperimentSpec, machine: Machine) -> Machine:
    """Return machines whose trainers take the times that the specification declares."""
    pace = spec.resources.pace
    times = {"token": 0.0, "row": pace.row_s, "micro_batch": pace.micro_batch_s, "step": pace.step_s, "declared": True}
    return machine.model_copy(update={"trainer": machine.trainer.model_copy(update=times)})


def _waits(latency: Latency) -> Spread:
    if latency.shape == "normal":
        return Spread(mean=latency.scale_s, sigma=latency.sigma, most=latency.cap_s)
    return Spread(median=latency.scale_s, sigma=latency.sigma, most=latency.cap_s)


def _stages(environment: EnvironmentSpec) -> Stages:
    """List who is asked, in turn: of all turns that an episode may have."""
    match environment:
        case Arithmetic():
            lines = environment.operands - 1
            planned = [("planner",)] * (lines - 1)
            return tuple(stage for i in range(lines) for stage in (*planned[i : i + 1], ("solver",), ("verifier",)))
        case HotCold():
            return tuple((name,) for _ in range(environment.guesses) for name in ("guesser", "hinter"))[:-1]
        case Kitchen():
            cooks = tuple(role.name for role in environment.facts().roles)
            return (cooks,) * environment.turns
    if stages := environment.facts().stages:
        return stages
    roles = environment.facts().roles
    together = len([role for role in roles if role.opens]) > 1
    if together:
        return (tuple(role.name for role in roles),) * max(role.max_turns for role in roles)
    most = max(role.max_turns for role in roles)
    return tuple((role.name,) for turn in range(most) for role in roles if turn < role.max_turns)
