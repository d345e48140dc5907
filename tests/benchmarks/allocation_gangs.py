"""What two gloo ranks of a gang take over one rank for the same rows: processor time of all ranks, and wall time.

Real trainer processes, nothing paced: one holds the policy alone, two more hold it together. Both sides accumulate the
same micro-batches and take a step on them, in turns.
"""

import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import Report, interleave, paired_ratios

from tests.support.trainer_child import TrainerChild, bind, start_trainer
from workers.training.wire import AccumulateReply, AccumulateRequest, StepReply, StepRequest, TrainRow

ROWS, PROMPT, RESPONSE, MICRO_BATCHES = 24, 24, 40, 2
POLICY = "speaker"


def spec(size: str) -> dict[str, Any]:
    from flexmarl.contracts.specification import ExperimentSpec

    policy = {"model": {"type": "factory", "size": size}, "warmup": None}
    own = {
        "agents": {POLICY: {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "policies": {POLICY: policy, "listener": policy},
    }
    return ExperimentSpec.model_validate(own).model_dump(mode="json")


def rows(seed: int) -> list[TrainRow]:
    rng = np.random.default_rng(seed)
    return [
        TrainRow(
            prompt=rng.integers(1, 20, PROMPT).astype("<i4").tobytes(),
            response=rng.integers(1, 20, RESPONSE).astype("<i4").tobytes(),
            logprobs=np.full(RESPONSE, -3.0, "<f4").tobytes(),
            allowed=b"",
            temperature=1.0,
            advantages=[float(rng.standard_normal())],
            weight=1.0,
        )
        for _ in range(ROWS)
    ]


def processor_s(children: list[TrainerChild]) -> float:
    """Return the seconds of processor time that processes have taken."""
    ticks = 0
    for child in children:
        fields = Path(f"/proc/{child.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(report: Report, home: Path, sizes: list[str], repeats: int) -> None:
    for size in sizes:
        own = home / size
        own.mkdir()
        children = [start_trainer(own, lease, spec(size)) for lease in (1, 2, 3)]
        try:
            _compared(report, children, size, repeats)
        finally:
            for child in children:
                child.stop()


def _compared(report: Report, children: list[TrainerChild], size: str, repeats: int) -> None:
    sides = {"one": children[:1], "two": children[1:]}
    versions = {"one": 0, "two": 0}
    processor: dict[str, list[float]] = {"one": [], "two": []}
    bind(sides["one"], POLICY)
    bind(sides["two"], POLICY, 1)

    def step(side: str) -> float:
        gang, version = sides[side], versions[side]
        epoch = f"{version}:{gang[0].incarnation}"
        numbers = [version * MICRO_BATCHES + place for place in range(MICRO_BATCHES)]
        before, began = processor_s(gang), time.perf_counter()
        for number in numbers:
            gang[0].ask("/accumulate", AccumulateRequest(POLICY, epoch, number, 0.0, rows(number)), AccumulateReply)
        gang[0].ask("/step", StepRequest(POLICY, epoch, numbers, version + 1, 1e-4), StepReply)
        took = time.perf_counter() - began
        processor[side].append(processor_s(gang) - before)
        versions[side] += 1
        return took

    for side in sides:
        step(side)
        processor[side].clear()
    took = interleave({side: (lambda side=side: step(side)) for side in sides}, repeats)
    report.ratio(f"gang_processor_ratio_{size}", paired_ratios(processor["two"], processor["one"]))
    report.ratio(f"gang_wall_ratio_{size}", paired_ratios(took["two"], took["one"]))
    report.figures[f"one_rank_s_{size}"] = statistics.median(took["one"])
    report.figures[f"one_rank_processor_s_{size}"] = statistics.median(processor["one"])
