"""The least seconds per step that devices, work and what depends on what leave to any schedule of a scenario.

Over its first steps together no simulation is faster, where every episode is trained that was begun: nothing is counted
here but prompts, replies, gradients, steps and loads, each at the best pace its device has, and of these only what must
come one after the other. A schedule that gives work up (redundancy, rows that are dropped) can be faster by that work.

Invariants: every term alone is a bound; `step_s` is the largest of a scenario's own terms, `free_s` of those that hold
for every split of its devices, every batch, gang and protocol under its lag bound; `apart_s` of those that hold for all
of these where engines and trainers have devices of their own.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from statistics import fmean

from flexmarl.orchestrator.plan import make_plan
from flexmarl.simulator.scenarios.draws import Script
from flexmarl.simulator.scenarios.recorded import scripts_of
from flexmarl.simulator.scenarios.scenario import Scenario
from flexmarl.simulator.search.turnovers import EngineCapacity, EpisodeDemand, GroupDemand, turnover


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds per step, each the mean over the steps looked at."""

    engines: float
    """All prompts and replies, at the best batch, over all engines."""
    trainers: float
    """All gradients and optimizer steps over all trainer devices."""
    policy: float
    """Gradients and step of the policy that takes longest on the devices it may have."""
    episode: float
    """The longest episode on engines of its own, over the steps that it may span."""
    cycle: float
    """Of a policy at bound 0: from its weights to its first micro-batch, then its gradients, step and load; or from
    its weights to the end of the last group, then that group's gradient, step and load."""
    rest: float
    """At bound 0: all prompts and replies over all engines, and then what follows a cohort's last reply before any
    engine has something to do again: the last gradient, step and load of a policy that every episode begins with."""
    shared: float
    """All work over all devices."""
    apart: float
    """All work where a device generates or trains, in the best split, with the rest at bound 0."""
    turnover: float
    """At bound 0: the longest episode, and then the same."""
    own: float
    """At bound 0: from a cohort's weights to the next ones, with room for every reply and all gradients that wait for
    the last groups, on the engines and the gang of this scenario."""
    strict: float
    """The same if every device did both: of any schedule, whichever devices change sides within a step."""

    @property
    def step_s(self) -> float:
        """Return what this scenario takes at least."""
        return max(self.engines, self.trainers, self.policy, self.episode, self.cycle, self.rest, self.own)

    @property
    def critical_s(self) -> float:
        """Return what no number of devices shortens: the critical path of any schedule under the lag bound."""
        return max(self.episode, self.turnover)

    @property
    def free_s(self) -> float:
        """Return what any other split of the devices and any other mechanism takes at least."""
        return max(self.shared, self.critical_s, self.strict)

    @property
    def apart_s(self) -> float:
        """Return the same of whatever gives engines and trainers devices of their own."""
        return max(self.apart, self.critical_s, self.strict)


@dataclass(frozen=True, slots=True)
class StepDemand:
    """Seconds that the work of a step takes on one device at the highest throughput."""

    engines: float
    trained: dict[str, float]
    """Policy -> its gradients and optimizer step."""


@dataclass(slots=True)
class _Path:
    """An episode alone on its engines."""

    begins: dict[str, float]
    """Policy -> when its first turn begins."""
    tokens: dict[str, int]
    rows: dict[str, int]
    seconds: float
    chain: float = 0.0
    """Of these the replies of its path."""
    beside: float = 0.0
    """Replies beside its path."""


def least(scenario: Scenario, *, measured: bool = False) -> Bound:
    """Return the bound of the first steps of a scenario, those that warm it up among them.

    `measured`: of the steps alone that a report measures, so that both are about the same episodes. That holds at bound
    0 alone, elsewhere a window has episodes of others, and is ignored there; and where all policies step together: what
    one steps ahead of others shifts its window by so much.
    """
    lags = [scenario.spec.lag_policy_of(name).bound for name in scenario.spec.trainable_policies()]
    begin = scenario.warm_up if measured and not any(lags) else 0
    spec, mean = scenario.spec, _means(scenario, range(begin, scenario.warm_up + scenario.steps))
    cycles = [seconds for name, seconds in mean.items() if name.startswith("cycle ")]
    alone = [seconds for name, seconds in mean.items() if name.startswith("policy ")]
    engines, trainers, quiet = max(mean["replies"], mean["prompts"]), mean["gradients"], mean["quiet"]
    resources = spec.resources
    devices, each = resources.most_rollout_devices + spec.own_trainers, resources.engine_devices
    parts = range(1, (devices - 1) // each + 1)
    splits = (max(engines / part + quiet, trainers / (devices - each * part), mean[f"split {part}"]) for part in parts)
    shared = (engines * each + trainers) / devices
    return Bound(
        engines=engines / resources.most_engines,
        trainers=trainers / resources.training_devices,
        policy=max(alone, default=0.0),
        episode=mean["episode"],
        cycle=max(cycles, default=0.0),
        rest=engines / resources.most_engines + quiet if quiet else 0.0,
        shared=shared,
        apart=min(splits, default=shared),
        turnover=mean["longest"] + quiet if quiet else 0.0,
        own=mean["own"],
        strict=mean["strict"],
    )


def asks(scenario: Scenario) -> StepDemand:
    """Return what the first step of a scenario asks of engines and trainers."""
    mean = _means(scenario, range(1))
    own = {name.removeprefix("taken "): seconds for name, seconds in mean.items() if name.startswith("taken ")}
    return StepDemand(max(mean["replies"], mean["prompts"]), own)


def _means(scenario: Scenario, cohorts: range) -> dict[str, float]:
    """Return the terms of cohorts by name, each the mean over these."""
    spec = scenario.spec
    roles = {role: number for number, role in enumerate(sorted(spec.agents))}
    draws, members = scripts_of(scenario.workload, roles, scenario.seed), spec.batch.episodes_per_task
    work, terms = _Work(scenario), defaultdict[str, list[float]](list)
    for cohort in cohorts:
        first = cohort * spec.batch.tasks_per_step
        groups = [
            [work.path(draws.script(draw, member, members, 1, draw)) for member in range(members)]
            for draw in range(first, first + spec.batch.tasks_per_step)
        ]
        for name, seconds in work.terms(groups):
            terms[name].append(seconds)
    return {name: fmean(found) for name, found in terms.items()}


class _Work:
    """What a scenario's episodes ask of its devices."""

    def __init__(self, scenario: Scenario) -> None:
        self._spec, self._model = scenario.spec, scenario.machine
        self._stages, self._plan = scenario.workload.stages, make_plan(scenario.spec, frozenset())
        engine = scenario.machine.wide_engine
        paces = [count / (1.0 + (count - 1) / engine.batch) for count in (1, engine.slots)]
        self._token_s = engine.token / max(paces) / engine.replicas
        self._prefill = engine.prefill * engine.replicas
        self._capacity = EngineCapacity(float(engine.replicas), engine.batch, engine.slots)
        self._kept = {role: max(shares) for role, shares in scenario.workload.shares(scenario.spec.agents).items()}
        self._replies = self._prompts = 0.0

    def path(self, script: Script) -> _Path:
        """Walk through an episode, stage by stage, and count what it asks for."""
        found, model, turns = _Path({}, {}, {}, 0.0), self._model, script.turns
        for stage, wait in enumerate(script.waits):
            longest, path_s, asked_s = 0.0, 0.0, 0.0
            asked = script.widths[stage] if script.widths else len(self._stages[stage % len(self._stages)])
            for role, _, prompt, reply in islice(turns, asked):
                policy = self._spec.policy_of(role)
                times = model.answers(policy)
                found.begins.setdefault(policy, found.seconds)
                found.tokens[policy] = found.tokens.get(policy, 0) + reply
                found.rows[policy] = found.rows.get(policy, 0) + 1
                prompt_s = prompt * (1.0 - self._kept.get(role, 0.0)) * times / self._prefill
                reply_s = reply * times * model.engine.token
                asked_s += reply_s
                if prompt_s + reply_s > longest:
                    longest, path_s = prompt_s + reply_s, reply_s
                self._replies += reply * times * self._token_s
                self._prompts += prompt_s
            found.seconds += longest + wait
            found.chain += path_s
            found.beside += asked_s - path_s
        found.seconds += script.reward_s
        return found

    def terms(self, groups: list[list[_Path]]) -> Iterator[tuple[str, float]]:
        """Name the terms of a cohort whose paths were walked since the last call."""
        yield "replies", self._replies
        yield "prompts", self._prompts
        self._replies = self._prompts = 0.0
        everyone = [path for group in groups for path in group]
        longest = max(path.seconds for path in everyone)
        yield "longest", longest
        yield "episode", longest / self._spans()
        yield "quiet", self._quiet(everyone)
        yield from self._turnovers(groups, everyone)
        taken = {name: self._gradient_s(name, everyone) for name in self._spec.trainable_policies()}
        taken = {name: seconds for name, seconds in taken.items() if seconds}
        steps = {name: self._step_s(name) for name in taken}
        yield "gradients", sum(taken.values()) + sum(steps.values())
        for name, seconds in taken.items():
            yield f"taken {name}", seconds + steps[name]
            ranks = min(self._spec.policies[name].devices.most, self._spec.resources.training_devices)
            yield f"policy {name}", seconds / ranks + steps[name]
            if self._spec.lag_policy_of(name).bound == 0:
                yield f"cycle {name}", self._cycle(name, groups, seconds, ranks) + steps[name]

    def _quiet(self, paths: list[_Path]) -> float:
        """Return what passes between a cohort's last reply and the first of the next one: no engine plays then.

        A policy that every episode begins with, at bound 0, steps once the last group has settled, and is then loaded.
        """
        return max((self._after_s(name) for name in self._opening(paths)), default=0.0)

    def _opening(self, paths: list[_Path]) -> list[str]:
        """List the policies at bound 0 that every episode begins with, none where a step may be put off."""
        spec = self._spec
        if spec.batch.min_rows > 1:
            return []
        opening = set.intersection(*({name for name, at in path.begins.items() if not at} for path in paths))
        return [name for name in spec.trainable_policies() if name in opening and not spec.lag_policy_of(name).bound]

    def _after_s(self, name: str) -> float:
        """Return what follows a policy's last rows at least: a micro-batch's fixed part, the step and the load."""
        trainer, model = self._model.trainer, self._model
        return trainer.micro_batch + (trainer.step * trainer.times + model.engine.load) * model.times(name)

    def _turnovers(self, groups: list[list[_Path]], everyone: list[_Path]) -> Iterator[tuple[str, float]]:
        """Name the least times from a cohort's weights to the next ones: as it is, of each split, and of any."""
        resources, opening = self._spec.resources, self._opening(everyone)
        each, devices = resources.engine_devices, resources.most_rollout_devices + self._spec.own_trainers
        splits = {f"split {part}": (part, devices - each * part) for part in range(1, (devices - 1) // each + 1)}
        gangs = {name: self._spec.policies[name].devices.most for name in opening}
        own = resources.most_engines, resources.training_devices
        units = [[path] for path in everyone] if self._plan.cutting.by_episode else groups
        demands = {name: [self._demand(name, unit) for unit in units] for name in opening}
        for called, (engines, ranks) in {**splits, "strict": (devices / each, devices), "own": own}.items():
            room = replace(self._capacity, engines=engines * self._capacity.engines)
            yield (
                called,
                max(
                    (
                        turnover(demands[name], room, min(ranks, gangs[name]) if called == "own" else ranks, after_s)
                        for name, after_s in ((name, self._after_s(name)) for name in opening)
                    ),
                    default=0.0,
                ),
            )

    def _demand(self, name: str, unit: list[_Path]) -> GroupDemand:
        """Return what episodes that settle together need, with the gradient of a policy without its fixed part."""
        episodes = tuple(EpisodeDemand(one.seconds - one.chain, one.chain, one.beside) for one in unit)
        return GroupDemand(episodes, self._gradient_s(name, unit) - self._model.trainer.micro_batch)

    def _spans(self) -> float:
        """Return the steps that an episode may last: until the step that its oldest rows may just be trained in."""
        rules = [self._spec.lag_policy_of(name) for name in self._spec.trainable_policies()]
        if any(own.at_cut == "train" for own in rules):
            return inf
        parts = self._spec.batch.mini_batches if self._spec.mechanisms.trainer_protocol == "mini_batch" else 1
        return 1 + max(own.bound for own in rules) // parts

    def _gradient_s(self, name: str, paths: list[_Path]) -> float:
        """Return the device seconds of a policy's gradients, of one micro-batch at least."""
        own = self._model.trainer
        rows = sum(path.rows.get(name, 0) for path in paths)
        tokens = sum(path.tokens.get(name, 0) for path in paths)
        learnt = (own.row * rows + own.token * tokens) * self._model.times(name) / self._model.width
        return own.micro_batch + learnt * own.times if rows else 0.0

    def _step_s(self, name: str) -> float:
        """Return what a policy's optimizer step takes, nothing where it may be put off."""
        own = self._model.trainer
        return own.step * own.times * self._model.times(name) if self._spec.batch.min_rows == 1 else 0.0

    def _cycle(self, name: str, groups: list[list[_Path]], seconds: float, ranks: int) -> float:
        """Return what follows a policy's weights until its next step may be taken, and that step's load."""
        ends = [
            (max(path.seconds - path.begins[name] for path in own), self._gradient_s(name, own))
            for group in groups
            if (own := [path for path in group if name in path.begins])
        ]
        after = sorted(remaining for remaining, _ in ends)
        first = after[self._first(len(groups)) - 1] if len(ends) == len(groups) else after[0]
        last = max(remaining + gradient / ranks for remaining, gradient in ends)
        if self._plan.cutting.by_episode:
            alone = [path.seconds - path.begins[name] for group in groups for path in group if name in path.begins]
            first, last = min(alone), max(alone)
        return max(first + seconds / ranks, last) + self._model.engine.load * self._model.times(name)

    def _first(self, groups: int) -> int:
        """Return how many groups have settled when the first micro-batch is cut."""
        return (
            min(self._plan.cutting.slice_groups, self._plan.cutting.part_groups)
            if self._plan.cutting.streaming
            else groups
        )
