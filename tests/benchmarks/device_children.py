"""Real trainers and engines on a named device, for benchmarks that run on CPUs and on GPUs alike.

`cpu` puts all children on the CPU; `cuda` puts the first one on the first GPU, the second on the second and so on, and
begins anew behind the last. Without `--model`, the model is a small one of random weights, made for the occasion.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROOT
from publish_model import make_model

from flexmarl.contracts.specification.experiment import ExperimentSpec
from tests.support.engines import RunningEngine
from tests.support.trainer_child import TrainerChild, start_trainer
from workers.training.wire import AccumulateReply, AccumulateRequest, StepReply, StepRequest, TrainRow

POLICY = "team"
CHAT_TEMPLATE = "chat_template.jinja"
RATE = 1e-4


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where trainers and engines run")
    parser.add_argument("--model", type=Path, default=None, help="folder of the model; without it, a small random one")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="in which a policy is computed")


@dataclass(frozen=True)
class Stage:
    """What the children of a benchmark have in common."""

    home: Path
    model: Path
    device: str
    precision: str = "fp32"
    devices: int = 1
    """GPUs of this machine; of the CPU, one."""

    @property
    def config(self) -> dict[str, Any]:
        """Return the model's `config.json`."""
        found: dict[str, Any] = json.loads((self.model / "config.json").read_text(encoding="utf-8"))
        return found

    def spec(self, engine: str = "torch") -> dict[str, Any]:
        """Return a resolved run whose two agents share one policy of the model."""
        chats = (self.model / CHAT_TEMPLATE).exists()
        roles = ("solver", "reviser") if chats else ("speaker", "listener")
        model = {"type": "folder", "path": str(self.model)}
        given = {
            "agents": {role: {"policy": POLICY} for role in roles},
            "environment": {"type": "sums" if chats else "reference_game"},
            "policies": {POLICY: {"model": model, "precision": self.precision, "warmup": None}},
            "resources": {"engine": engine},
        }
        return ExperimentSpec.model_validate(given).model_dump(mode="json")

    def place(self, number: int) -> str:
        """Return the device of the child of a number, counted from 0."""
        return f"cuda:{number % self.devices}" if self.device == "cuda" else "cpu"

    @contextmanager
    def trainers(self, count: int) -> Iterator[list[TrainerChild]]:
        spec, roots = self.spec(), (str(self.model.parent),)
        with ExitStack() as started:
            children = []
            for number in range(count):
                child = start_trainer(self.home, number + 1, spec, device=self.place(number), roots=roots)
                started.callback(child.stop)
                children.append(child)
            yield children

    @contextmanager
    def engines(self, count: int, engine: str = "torch", first: int = 0) -> Iterator[list[RunningEngine]]:
        """Start engines on the devices from `first` on."""
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
        spec, roots = self.spec(engine), (str(self.model.parent),)
        started: list[RunningEngine] = []
        try:
            for number in range(count):
                place, life = self.place(first + number), f"life-{number}"
                started.append(RunningEngine(engine, self.home, life=life, device=place, spec=spec, roots=roots))
            yield [one.ready() for one in started]
        finally:
            for one in started:
                one.child.stop(20.0)


def stage_of(settings: dict[str, Any], home: Path, precision: str = "") -> Stage:
    """Return the stage that a benchmark's options describe."""
    home.mkdir(parents=True, exist_ok=True)
    own = settings["model"]
    model = Path(own).resolve() if own else make_model(home.parent / "random", "small")
    devices = 1
    if settings["device"] == "cuda":
        devices = gpus()
        if not devices:
            raise SystemExit("no CUDA device is visible here; use --device cpu")
    return Stage(home, model, settings["device"], precision or settings["precision"], devices)


def gpus() -> int:
    """Return the number of GPUs, asked in a process of its own: CUDA takes memory of a process that it was used in."""
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def ragged_rows(seed: int, count: int, words: int, longest: int) -> list[TrainRow]:
    """Return rows of prompts of about 30 and replies of about 60 random tokens; a few replies are ten times as long."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        prompt = int(np.clip(rng.lognormal(np.log(32), 0.5), 4, longest // 2))
        reply = int(np.clip(rng.lognormal(np.log(64), 1.0), 4, longest // 2))
        rows.append(
            TrainRow(
                prompt=rng.integers(3, words, prompt).astype("<i4").tobytes(),
                response=rng.integers(3, words, reply).astype("<i4").tobytes(),
                logprobs=np.full(reply, -np.log(words), "<f4").tobytes(),
                allowed=b"",
                temperature=1.0,
                advantages=[float(rng.standard_normal())],
                weight=1.0,
            )
        )
    return rows


def tokens_of(rows: list[TrainRow]) -> tuple[int, int]:
    """Return the tokens of rows, and those of them that are replies."""
    replies = sum(len(row.response) for row in rows) // 4
    return replies + sum(len(row.prompt) for row in rows) // 4, replies


def accumulate(leader: TrainerChild, version: int, number: int, rows: list[TrainRow]) -> dict[str, float]:
    """Add a micro-batch to the step behind a version; return its figures."""
    asked = AccumulateRequest(POLICY, f"{version}:{leader.incarnation}", number, 0.0, rows)
    return leader.ask("/accumulate", asked, AccumulateReply).stats


def step(leader: TrainerChild, version: int, numbers: list[int]) -> StepReply:
    """Move a version's weights by the micro-batches of these numbers."""
    asked = StepRequest(POLICY, f"{version}:{leader.incarnation}", numbers, version + 1, RATE)
    return leader.ask("/step", asked, StepReply)
