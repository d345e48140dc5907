"""The torch engine in bf16 against itself in fp32: tokens per second and resident memory on a real chat model.

Each precision has a process of its own, which holds the model as a host's state plane would give it, rounded to bf16
either way, so that both compute with the same weights. They take turns on one core: a batch of requests, log-probs
included. Memory is what a process has over one that has imported the libraries alone.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import harness

PROMPT = 48


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model, such as SmolLM2-135M-Instruct")
    parser.add_argument("--batch", type=int, default=32, help="requests at a time")
    parser.add_argument("--tokens", type=int, default=64, help="of each reply")
    parser.add_argument("--repeats", type=int, default=5)


def resident_mb(field: str = "VmRSS") -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(f"{field}:"))


def child(precision: str, model: str, batch: int, tokens: int) -> None:
    """Answer each line on standard input with tokens per second of one batch."""
    import numpy as np
    from safetensors.torch import load_file

    from workers.models.architecture import read_architecture
    from workers.rollout.engines.requests import Request
    from workers.rollout.engines.serve import prepare_torch
    from workers.rollout.engines.torch_engine import TorchEngine

    prepare_torch(1)
    allow_everywhere(model)
    empty = resident_mb()
    engine = TorchEngine("cpu", rows=max(batch, 8))
    state = {name: tensor.bfloat16() for name, tensor in load_file(f"{model}/model.safetensors").items()}
    engine.load("p", 0, "", engine.prepare(state, read_architecture(model), precision))
    del state
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(100, 40_000, PROMPT).tolist()) for _ in range(batch)]
    for turn, _ in enumerate(sys.stdin):
        started = time.perf_counter()
        engine.submit([Request(f"{turn}.{i}", "p", p, tokens, seed=i) for i, p in enumerate(prompts)])
        while engine.busy:
            engine.step()
        speed = batch * tokens / (time.perf_counter() - started)
        figures = {"speed": speed, "resident": resident_mb() - empty, "peak": resident_mb("VmHWM") - empty}
        print(json.dumps(figures), flush=True)


def allow_everywhere(model: str) -> None:
    from flexmarl.store.data.model_roots import ModelRoots
    from workers.models.opening import allow

    allow(ModelRoots((str(Path(model).resolve().parent),)))


@dataclass
class Side:
    process: "subprocess.Popen[str]"
    resident: float = 0.0
    peak: float = 0.0

    def turn(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        said = json.loads(self.process.stdout.readline())
        self.resident, self.peak = said["resident"], said["peak"]
        return float(said["speed"])


def side(precision: str, settings: dict[str, object]) -> Side:
    arguments = [precision, str(settings["model"]), str(settings["batch"]), str(settings["tokens"])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    return Side(process)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        precision, model, batch, tokens = sys.argv[2:]
        return child(precision, model, int(batch), int(tokens))
    report = harness.start("engine_precision", __doc__ or "", options)
    if report.quick:
        report.settings |= {"batch": 4, "tokens": 8, "repeats": 2}
    sides = {precision: side(precision, report.settings) for precision in ("fp32", "bf16")}
    try:
        for each in sides.values():
            each.turn()  # caches and kernels are made in the first
        runs = {name: each.turn for name, each in sides.items()}
        speeds = harness.interleave(runs, int(str(report.settings["repeats"])))
    finally:
        for each in sides.values():
            each.process.kill()
            each.process.wait()
    report.ratio("speed_of_fp32", harness.paired_ratios(speeds["bf16"], speeds["fp32"]))
    for name, each in sides.items():
        report.figures[f"tokens_per_s_{name}"] = harness.median_and_lower_end(speeds[name])[0]
        report.figures[f"resident_mb_{name}"], report.figures[f"peak_mb_{name}"] = each.resident, each.peak
    report.finish()
    return None


if __name__ == "__main__":
    main()
