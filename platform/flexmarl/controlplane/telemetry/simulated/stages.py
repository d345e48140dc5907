"""The pipeline of a simulated run, in the form in which the page of real ones draws it.

Micro-batches are those that the core cut, groups those that settled, commands those that were carried out. Invariant:
what is made of them is made by the code that does it for real runs.
"""

from collections import Counter
from typing import Any

from flexmarl.contracts import commands as c
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.controlplane.telemetry.flow.pipeline import flow, lane, passed, trainer_time, waits
from flexmarl.controlplane.telemetry.simulated import device_timeline
from flexmarl.controlplane.telemetry.timeline.windows import Window
from flexmarl.simulator.reporting.watching import RunWatch
from flexmarl.store.reads.activity import CommandSpan
from flexmarl.store.reads.pipeline import PlayedGroup, Slice


def pipeline(watch: RunWatch, spec: ExperimentSpec, step: int) -> dict[str, Any]:
    """Return what the drawings of the pipeline page need, for a train step of a simulated run."""
    stepped = [0.0, *watch.cluster.log.stepped]
    window = Window(stepped[step - 1], stepped[step], step=step)
    devices, found, commands = device_timeline.accounts(watch, window)
    cut = slices(watch, commands)
    played, order = groups(watch), spec.trainable_policies()
    lanes = [lane(name, [s for s in cut if s.policy == name], played, commands, window) for name in order]
    for one in lanes:
        one |= {"waits": waits(one, devices, commands, window), "expected": 0, "open_since": []}
    served = {one["policy"]: max((p["version"] for p in one["publications"]), default=0) for one in lanes}
    return {
        "window": [window.since, window.until],
        "window_s": round(window.seconds, 3),
        "step": step,
        "live": False,
        "current_step": step,
        "policies": lanes,
        "steps": device_timeline.steps(watch, window),
        "passed": passed(lanes, cut, commands, step - 1, 0, served),
        "flow": flow(order, cut, step - 1, commands),
        "trainer_time": trainer_time(devices, found, commands, window, order),
        "trainer_step": step,
        "staleness": staleness(watch, spec, commands, step),
        "lag_bound": spec.mechanisms.lag_policy.bound,
        "strip": [{"step": n, "seconds": stepped[n] - stepped[n - 1]} for n in range(1, len(stepped))],
    }


def slices(watch: RunWatch, commands: list[CommandSpan]) -> list[Slice]:
    """List the micro-batches that were cut, by policy and number."""
    done = {(one.policy, one.micro_batch): one.t1 for one in commands if one.kind == "accumulate"}
    found = []
    for no, numbered in watch.commands.items():
        cut = numbered.command
        if not isinstance(cut, c.CutMicroBatch):
            continue
        policy, number = cut.ref.policy, cut.ref.no
        at = done.get((policy, number))
        status = "void" if no in watch.void else "cut" if at is None else "accumulated"
        draws = [sample.draw for sample in cut.samples]
        found.append(
            Slice(
                policy, number, cut.cohort, status, len(draws), draws[0] if draws else -1, draws[-1] if draws else -1,
                watch.decided[no], at, None,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (one.policy, one.no))


def groups(watch: RunWatch) -> dict[int, PlayedGroup]:
    """Return the settled training groups by draw."""
    found: dict[int, PlayedGroup] = {}
    for _, fact, outcome in watch.settled():
        if fact.origin is not Origin.TRAIN:
            continue
        command = watch.commands[fact.command_no].command
        assert isinstance(command, c.PlayGroups), "what settles was played"
        failed = int(outcome.status is not EpisodeStatus.FINISHED)
        known = found.get(fact.draw, PlayedGroup(command.cohort, fact.draw, fact.started_at, fact.finished_at, 0, 0))
        found[fact.draw] = PlayedGroup(
            known.cohort, fact.draw, min(known.started_at, fact.started_at), max(known.finished_at, fact.finished_at),
            known.episodes + 1, known.failed + failed,
        )  # fmt: skip
    return found


def staleness(watch: RunWatch, spec: ExperimentSpec, commands: list[CommandSpan], step: int) -> list[dict[str, Any]]:
    """Count a step's samples by policy and by versions behind the weights that were trained."""
    until = watch.cluster.log.stepped[step - 1]
    trained = {
        name: max(
            (o.version for o in commands if o.kind == "optimizer_step" and o.policy == name and o.t0 <= until),
            default=0,
        )
        - 1
        for name in spec.trainable_policies()
    }
    counted: Counter[tuple[str, int]] = Counter()
    for _, fact, outcome in watch.settled():
        command = watch.commands[fact.command_no].command
        if isinstance(command, c.PlayGroups) and fact.origin is Origin.TRAIN and command.cohort == step - 1:
            for sample in outcome.samples:
                policy = spec.policy_of(sample.role)
                if policy in trained:
                    begun = sample.segments[0] if sample.segments else fact.versions[policy]
                    counted[policy, trained[policy] - begun] += 1
    return [{"policy": policy, "lag": lag, "samples": count} for (policy, lag), count in sorted(counted.items())]
