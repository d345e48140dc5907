"""What a plan assumed of a run's rates, beside what the run measured for the same work.

Single figures of a fit trade with each other, so rates are compared: the work that engines and trainers did is taken
times the assumed figures and set against the time that it took. Of CPU devices all is as if with a core for itself, as
in a plan. What is not told, or was not assumed, is not compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from flexmarl.algorithms.replanning import ComparedRate
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.timings import Commanded, Decoded, RunRows
from flexmarl.simulator.prediction import estimates
from flexmarl.simulator.prediction.fitting import keeps_pace

Figures = Mapping[str, float]
"""Figure, as in `profile`, with its policy or role -> what was assumed of it."""


@dataclass(frozen=True, slots=True)
class StepWindow:
    steps: int
    seconds: float

    @property
    def step_s(self) -> float:
        """Return the mean seconds of a step."""
        return self.seconds / self.steps


def compared(
    spec: ExperimentSpec, assumed: Figures, assumed_step_s: float | None, rows: RunRows, window: StepWindow
) -> list[ComparedRate]:
    """Return every rate of which something was assumed and measured, over a window of train steps."""
    rows = estimates.alone(rows)
    found = list(_of_a_run(assumed_step_s, window))
    for policy in spec.policies:
        found += _generation(spec, assumed, policy, rows, window)
        found += _training(spec, assumed, policy, rows, window)
    found += _lengths(spec, assumed, rows, window)
    return found


def _of_a_run(assumed_step_s: float | None, window: StepWindow) -> Iterator[ComparedRate]:
    if assumed_step_s:
        felt = abs(window.step_s - assumed_step_s) / window.step_s
        yield ComparedRate("step", "", "s", assumed_step_s, window.step_s, felt)


def _generation(
    spec: ExperimentSpec, assumed: Figures, policy: str, rows: RunRows, window: StepWindow
) -> Iterator[ComparedRate]:
    own = [row for row in rows.decoded if row.policy == policy and row.tokens]
    figures = [assumed.get(f"engine.{name} {policy}") for name in ("token", "row", "prompt")]
    engines = spec.resources.most_engines
    if own and None not in figures:
        token, row, prompt = (float(figure or 0.0) for figure in figures)
        took = sum(one.seconds for one in own)
        thought = sum(_decoding_s(one, token, row, prompt) for one in own)
        yield _speed("generation", policy, sum(one.tokens for one in own), (thought, took), engines * window.seconds)
    yield from _duration("load", policy, assumed.get(f"engine.load {policy}"), rows.lasted.get(("load", policy), []),
                         window, engines)  # fmt: skip


def _decoding_s(one: Decoded, token: float, row: float, prompt: float) -> float:
    return one.steps * max(0.0, token - row) + one.tokens * row + one.prompts * prompt


def _training(
    spec: ExperimentSpec, assumed: Figures, policy: str, rows: RunRows, window: StepWindow
) -> Iterator[ComparedRate]:
    if keeps_pace(spec) or policy not in spec.trainable_policies():
        return
    own = [one for one in rows.commanded if one.policy == policy]
    trainers = spec.resources.training_devices
    gradients = [one for one in own if one.kind == "accumulate" and one.tokens]
    fixed, token = (assumed.get(f"trainer.{name} {policy}") for name in ("micro_batch", "token"))
    if gradients and fixed is not None and token is not None:
        took, thought = sum(map(_alone_s, gradients)), sum(fixed + token * one.tokens for one in gradients)
        of = spec.policies[policy].devices.most
        room = max(1.0, trainers / of) * window.seconds
        yield _speed("training", policy, sum(one.tokens for one in gradients), (thought, took), room)
    steps = [_alone_s(one) for one in own if one.kind == "optimizer_step"]
    yield from _duration("optimizer_step", policy, assumed.get(f"trainer.step {policy}"), steps, window, trainers)


def _alone_s(one: Commanded) -> float:
    return one.seconds / one.slow


def _lengths(spec: ExperimentSpec, assumed: Figures, rows: RunRows, window: StepWindow) -> Iterator[ComparedRate]:
    """Compare replies; how much of a step a longer one is, is the share of it in which its policy generates."""
    for one in rows.roles:
        before = assumed.get(f"role.reply {one.role}")
        if before is not None and one.role in spec.agents:
            policy = spec.agents[one.role].policy or one.role
            took = sum(row.seconds for row in rows.decoded if row.policy == policy)
            share = min(1.0, took / (spec.resources.most_engines * window.seconds))
            felt = share * abs(one.reply - before) / max(one.reply, before, 1e-9)
            yield ComparedRate("reply", one.role, "tokens", before, one.reply, felt)


def _speed(name: str, of: str, tokens: int, seconds: tuple[float, float], room: float) -> ComparedRate:
    """Compare tokens per second of work; `seconds`: as assumed and as measured, of `room` seconds of devices."""
    assumed, measured = (tokens / max(1e-9, one) for one in seconds)
    return ComparedRate(name, of, "tokens/s", assumed, measured, min(1.0, abs(seconds[1] - seconds[0]) / room))


def _duration(
    name: str, of: str, assumed: float | None, told: list[float], window: StepWindow, devices: int
) -> Iterator[ComparedRate]:
    if assumed is not None and told:
        mean = fmean(told)
        felt = min(1.0, abs(mean - assumed) * len(told) / (devices * window.seconds))
        yield ComparedRate(name, of, "s", assumed, mean, felt)
