"""What a learner takes, measured in a process of its own: `python -m tests.support.trainer_memory QUESTION ...`.

`weights full|lora`: bytes per weight of a model of the size of SmolLM2-135M in bf16, at rest after a step and at the
most within it, less what the libraries take. `peak full|lora fp32|bf16 keep|recompute native|transformers TOKENS`:
bytes at the most of a step with a pass of so many tokens, less what the program took before. `growth`: megabytes by
which ragged packs in bf16 make the process grow.
"""

import ctypes
import gc
import json
import sys
from pathlib import Path

import numpy as np
import torch

from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW, Lora
from workers.memory import give_back
from workers.models.adapter import initial_adapter
from workers.models.architecture import parse_architecture
from workers.models.families import LibraryModel, Shape, library_model_of
from workers.training.back_ends import order_of
from workers.training.families.skeleton import stacks_of
from workers.training.learner import Adapter, Learner
from workers.training.objective import Objective
from workers.training.parameters import FlatParameters
from workers.training.wire import TrainRow

OBJECTIVE = Objective.of(LOSS.options())
SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_152,
    "tie_word_embeddings": True, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
}  # fmt: skip
SMALL = {**SMOLLM2, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "vocab_size": 512}  # fmt: skip


def resident(field: str = "VmRSS") -> int:
    """Return a figure of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def nothing(model: LibraryModel) -> dict[str, torch.Tensor]:
    """Return weights that are all alike and take no memory."""
    stacks = stacks_of(model, 0)
    return {weight: torch.tensor(0.01).expand(one.shape) for one in stacks for weight in one.weights}


def learner(
    config: dict[str, object], tuning: str, precision: str = "bf16", recompute: bool = False, native: bool = False
) -> Learner:
    library = library_model_of(config)
    model: Shape = parse_architecture({**config, "hidden_act": "silu", "rope_theta": 1e5}) if native else library
    weights = nothing(library)
    if tuning == "full":
        return Learner(weights, model, OBJECTIVE, AdamW(), precision, recompute=recompute)
    lora = Lora(rank=16, alpha=32)
    order = order_of(model, {name: tuple(one.shape) for name, one in weights.items()})
    base = FlatParameters(weights, order, precision, "cpu", frozen=True)
    adapter = Adapter(lora, initial_adapter(weights, lora, 0))
    return Learner(base, model, OBJECTIVE, AdamW(), precision, adapter=adapter, recompute=recompute)


def row(rng: np.random.Generator, words: int, prompt: int, response: int) -> TrainRow:
    return TrainRow(
        prompt=rng.integers(3, words, prompt).astype("<i4").tobytes(),
        response=rng.integers(3, words, response).astype("<i4").tobytes(),
        logprobs=np.full(response, -3.0, "<f4").tobytes(),
        allowed=b"",
        temperature=1.0,
        advantages=[float(rng.standard_normal())],
        weight=1.0,
    )


def take(one: Learner, number: int, rows: list[TrainRow]) -> None:
    one.accumulate(one.accumulator.epoch, number, str(number).encode(), rows, 0.0)


def weights(tuning: str) -> dict[str, float]:
    rng = np.random.default_rng(0)
    warm = learner(SMALL, tuning)  # libraries are loaded
    take(warm, 0, [row(rng, 500, 20, 10)])
    warm.step(1e-5)
    del warm
    give_back()
    before = resident()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    one = learner(SMOLLM2, tuning)
    for number in range(2):
        take(one, number, [row(rng, 40_000, 40, 20)])
    one.step(1e-5)
    most = resident("VmHWM")
    give_back()
    count = sum(tensor.numel() for tensor in nothing(library_model_of(SMOLLM2)).values())
    return {
        "weights": count,
        "trained": one.parameters.size,
        "rest": (resident() - before) / count,
        "most": (most - before) / count,
    }


def peak(tuning: str, precision: str, activations: str, back_end: str, tokens: str) -> dict[str, float]:
    rng, rows, how = (
        np.random.default_rng(0),
        int(tokens) // 64,
        (tuning, precision, activations == "recompute", back_end == "native"),
    )
    warm = learner(SMALL, *how)
    take(warm, 0, [row(rng, 500, 40, 24) for _ in range(rows)])
    warm.step(1e-5)
    del warm
    give_back()
    before = resident()
    one = learner(SMOLLM2, *how)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    take(one, 0, [row(rng, 40_000, 40, 24) for _ in range(rows)])
    one.step(1e-5)
    return {"most": resident("VmHWM") - before, "tokens": 64 * rows}


def growth() -> dict[str, float]:
    rng = np.random.default_rng(0)
    one = learner(SMALL, "full")
    sizes, begun = [], resident() / 2**20
    for _ in range(4):
        for number in range(40):
            one.accumulator.open("")
            prompt, response = int(rng.integers(20, 700)), int(rng.integers(5, 300))
            take(one, number, [row(rng, 500, prompt, response)])
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        sizes.append(resident() / 2**20)
    return dict(zip(("first", "second", "third", "fourth"), np.diff([begun, *sizes]).tolist(), strict=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    questions = {"weights": weights, "peak": peak, "growth": growth}
    print(json.dumps(questions[sys.argv[1]](*sys.argv[2:])))
