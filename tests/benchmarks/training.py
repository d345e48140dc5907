"""A training step of this project's trainer against those of other trainers, and what an update costs it.

Gate, over rows of lognormal lengths, sizes S, M and L (`training_sides.py`), everything pinned to one core; without a
size, the worst of them:
`ratio_over_padded_loop`, `ratio_over_bucketed_loop`: steps/s over those of a loop over the Hugging Face model, padded
in the order rows come in, and sorted by length under the trainer's token budget. `ratio_over_trl`: over TRL's GRPO
loss, where TRL is installed (requirements/trl.txt). `ratio_over_library`: of the native back end over that of the
transformers library; `library_over_padded_loop_<size>`: of that one over the padded loop. `attention_share`: share of
the step's processor time in attention.
`memory_over_<side>`: the trainer's peak of resident memory over another's; each side in a process of its own, peak
minus what was resident before the model was made.
`bf16_ratio`, `recompute_ratio`: steps/s over those of fp32 that keeps its activations; `peak_mb_<way>` what they take.

`ratio_<size>_<shape>`: tokens/s of the trainer's gradient (packing and figures included) over Hugging Face's forward,
log-softmax and backward of the same rows of one length. `update_ms_<size>_<phase>`: one update of the reference game,
256 episodes and both agents, in four micro-batches each, steps and durable weights included; `first` with replies of
untrained policies, `last` with those of policies that agree on a code (rows repeat). `put_ms` and `get_ms`: weights of
a policy S through the state plane. `pss_mb`: proportional set size of the whole process of the trainer with two
policies S, without Hugging Face.
"""

import argparse
import gc
import importlib.util
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
import numpy as np
import training_sides as sides

SHAPES = {"short": (256, 3, 2), "prompts": (64, 30, 2), "replies": (32, 12, 40)}
"""rows, prompt tokens, response tokens"""
WORDS = 43
EPISODES, MICRO_BATCHES = 256, 4


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--core", type=int, default=0, help="core everything is pinned to, counted from the last")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", nargs="*", default=["S", "M", "L"], choices=sides.SIZES)
    parser.add_argument("--gate-only", action="store_true", help="only the comparison with other trainers")


TITLES = {"library": "library", "padded": "padded_loop", "bucketed": "bucketed_loop", "trl": "trl"}
WAYS: dict[str, dict[str, object]] = {"fp32": {}, "bf16": {"precision": "bf16"}, "recompute": {"recompute": True}}


def gate(report: harness.Report, names: list[str], repeats: int) -> None:
    """Compare steps, then memory; the figure without a size is the worst of the sizes."""
    others = [side for side in TITLES if side != "trl" or importlib.util.find_spec("trl") is not None]
    found = report.figures
    for name in names:
        compare(report, name, others, repeats)
        peaks = {side: peak(side, name) for side in ("packed", *others)}
        found |= {f"peak_mb_{side}_{name}": megabytes for side, megabytes in peaks.items()}
        found |= {f"memory_over_{side}_{name}": peaks["packed"] / peaks[side] for side in others}
    for side in others:
        for end in ("", "_lower"):
            key = f"ratio_over_{TITLES[side]}"
            found[key + end] = min(found[f"{key}_{name}{end}"] for name in names)
        found[f"memory_over_{side}"] = max(found[f"memory_over_{side}_{name}"] for name in names)
    found["attention_share"] = max(found[f"attention_share_{name}"] for name in names)
    ways(report, names[-1], repeats)


def compare(report: harness.Report, name: str, others: list[str], repeats: int) -> None:
    size = sides.SIZES[name]
    rows = sides.lognormal_rows(size, 16 if report.quick else size.rows)
    made = {side: sides.SIDES[side](size, rows) for side in ("packed", *others)}
    for side in ("packed", "library"):
        check_equal(made[side].gradient(), made["bucketed"].gradient())
    for one in made.values():
        one.step()
    seconds = harness.interleave({side: one.step for side, one in made.items()}, repeats)
    for side in others:
        report.ratio(f"ratio_over_{TITLES[side]}_{name}", harness.paired_ratios(seconds[side], seconds["packed"]))
    report.ratio(f"library_over_padded_loop_{name}", harness.paired_ratios(seconds["padded"], seconds["library"]))
    for side, spent in seconds.items():
        report.figures[f"tokens_per_s_{side}_{name}"] = sides.tokens_of(rows) / float(np.median(spent))
    report.figures[f"attention_share_{name}"] = attention_share(made["packed"])


def check_equal(found: dict, expected: dict) -> None:
    """Nothing is compared that is not the same step."""
    for name, gradient in expected.items():
        if not name.endswith("k_proj.bias"):  # its true gradient is 0
            assert (found[name] - gradient).norm() <= 1e-4 * gradient.norm(), name


def attention_share(trainer: sides.Packed) -> float:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as measured:
        trainer.step()
    spent = {event.key: event.self_cpu_time_total for event in measured.key_averages()}
    return sum(own for key, own in spent.items() if "attention" in key) / sum(spent.values())


def ways(report: harness.Report, name: str, repeats: int) -> None:
    """Compare the trainer with itself: other precisions, and activations that are computed again."""
    size = sides.SIZES[name]
    rows = sides.lognormal_rows(size, 16 if report.quick else size.rows)
    made = {way: sides.Packed(size, rows, **settings) for way, settings in WAYS.items()}
    for one in made.values():
        one.step()
    seconds = harness.interleave({way: one.step for way, one in made.items()}, repeats)
    for way in WAYS:
        report.figures[f"peak_mb_{way}"] = peak("packed", name, way)
        if way != "fp32":
            report.ratio(f"{way}_ratio", harness.paired_ratios(seconds["fp32"], seconds[way]))


def peak(side: str, name: str, way: str = "fp32") -> float:
    """Return the megabytes that a step takes at most, measured in a process of its own."""
    command = [sys.executable, __file__, "peak", side, name, way]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def print_peak(side: str, name: str, way: str) -> None:
    """Print the peak of resident memory over two steps, less what was resident before, as a child of the benchmark."""
    import torch

    torch.set_num_threads(1)
    size = sides.SIZES[name]
    rows = sides.lognormal_rows(size, size.rows)
    small = sides.SIZES["S"]
    sides.SIDES[side](small, sides.lognormal_rows(small, 2), **WAYS[way]).step()  # libraries are loaded and warm
    gc.collect()
    sides.forget_peak()
    before = sides.resident_mb("VmRSS")
    one = sides.SIDES[side](size, rows, **WAYS[way])
    for _ in range(2):
        one.step()
    print(sides.resident_mb("VmHWM") - before)


def make_rows(rng: np.random.Generator, count: int, prompt: int, response: int) -> list:
    from workers.training.wire import TrainRow

    return [
        TrainRow(
            prompt=rng.integers(3, WORDS, prompt).astype("<i4").tobytes(),
            response=rng.integers(3, WORDS, response).astype("<i4").tobytes(),
            logprobs=np.full(response, -3.5, "<f4").tobytes(),
            allowed=b"",
            temperature=1.0,
            advantages=[float(rng.standard_normal())],
            weight=1.0,
        )
        for _ in range(count)
    ]


def forward_backward(report: harness.Report, size: str, shape: str) -> None:
    import torch

    from flexmarl.contracts.specification.losses import LOSS
    from flexmarl.contracts.specification.team import AdamW, FactoryModel
    from workers.models import architecture_of, build_model
    from workers.training.learner import Learner, Objective

    source, objective = FactoryModel(size=size), Objective.of(LOSS.options())
    count, prompt, response = SHAPES[shape]
    rows = make_rows(np.random.default_rng(0), count, prompt, response)
    model = build_model(source, ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(WORDS - 3))), 0)
    learner = Learner(model.state_dict(), architecture_of(source), objective, AdamW())
    ids = torch.from_numpy(np.array([np.frombuffer(row.prompt + row.response, "<i4") for row in rows])).long()
    advantages = torch.tensor([[row.advantages[0]] for row in rows])
    tokens = count * (prompt + response)

    def own() -> float:
        began = time.perf_counter()
        learner.gradient(rows, 0.05, objective)
        return tokens / (time.perf_counter() - began)

    def hugging_face() -> float:
        model.zero_grad()
        began = time.perf_counter()
        scores = model(input_ids=ids, use_cache=False).logits[:, prompt - 1 : -1].log_softmax(-1)
        logprobs = scores.gather(2, ids[:, prompt:, None]).squeeze(2)
        entropy = -(scores.exp() * scores).sum(-1)
        (-(advantages * logprobs).sum() - 0.05 * entropy.sum()).backward()
        return tokens / (time.perf_counter() - began)

    for run in (own, hugging_face):
        run()
    rates = harness.interleave({"own": own, "hugging_face": hugging_face}, 2 if report.quick else 20)
    report.ratio(f"ratio_{size}_{shape}", harness.paired_ratios(rates["own"], rates["hugging_face"]))
    for name, values in rates.items():
        report.figures[f"{name}_tokens_per_s_{size}_{shape}"] = float(np.median(values))


def recorded_game(phase: str) -> dict[str, list]:
    """Return both agents' rows of one cohort of the reference game."""
    from flexmarl.contracts.specification.environment import ReferenceGame
    from workers.models import tokenizer_of
    from workers.rollout.environments.base import Reply
    from workers.rollout.environments.registry import family_of
    from workers.training.wire import TrainRow
    from workers.vocabulary import Codec

    family = family_of(ReferenceGame())
    codec = Codec(tokenizer_of(None, family.vocabulary()))
    rng = random.Random(0)
    rows: dict[str, list] = {role: [] for role in family.roles}
    for episode in range(EPISODES):
        played = family.make(episode // 8, False, random.Random(0))
        while asks := played.asks():
            (ask,) = asks
            drawn = rng if phase == "first" else random.Random(ask.observation)
            words = [drawn.choice(ask.allowed) for _ in range(ask.max_tokens)]
            rows[ask.role].append(
                TrainRow(
                    prompt=np.array(codec.encode(ask.observation), "<i4").tobytes(),
                    response=np.array(codec.ids_of(words), "<i4").tobytes(),
                    logprobs=np.full(len(words), -3.0, "<f4").tobytes(),
                    allowed=np.array(codec.ids_of(ask.allowed), "<i4").tobytes(),
                    temperature=1.0,
                    advantages=[rng.gauss(0.0, 0.3)],
                    weight=1.0,
                )
            )
            played.act([Reply(ask.role, " ".join(words))])
    return rows


def update(home: Path, size: str, phase: str, repeats: int) -> list[float]:
    """Return the milliseconds of updates of both policies."""
    from flexmarl.contracts.specification.experiment import ExperimentSpec
    from workers.child import IntervalLog
    from workers.training.trainer import CREATE, Trainer
    from workers.training.wire import AccumulateRequest, BindRequest, StepRequest

    model = {"type": "factory", "size": size}
    fields = {
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "policies": {role: {"model": model} for role in ("speaker", "listener")},
    }
    trainer = Trainer(ExperimentSpec.model_validate(fields), 1, "a", str(home), "cpu", IntervalLog())
    rows = recorded_game(phase)
    for policy in rows:
        trainer.bind(BindRequest(policy, CREATE))
    part = EPISODES // MICRO_BATCHES
    spent = []
    for version in range(repeats + 2):
        began = time.perf_counter()
        for policy, mine in rows.items():
            for number in range(MICRO_BATCHES):
                slice_ = mine[number * part : (number + 1) * part]
                trainer.accumulate(AccumulateRequest(policy, f"{version}:a", number, 0.05, slice_))
            trainer.step(StepRequest(policy, f"{version}:a", list(range(MICRO_BATCHES)), version + 1, 1e-3))
        spent.append((time.perf_counter() - began) * 1e3)
    return spent[2:]


def state_plane(report: harness.Report, home: Path, repeats: int) -> None:
    from flexmarl.contracts.specification.team import FactoryModel
    from workers.models.weights import initial_weights
    from workers.transfer import LocalTier

    writer, reader = LocalTier(home), LocalTier(home, "reader")
    put, get = [], []
    for seed in range(repeats):
        weights = initial_weights(FactoryModel(), WORDS, seed)
        began = time.perf_counter()
        manifest = writer.put(weights)
        stored = time.perf_counter()
        reader.get(manifest.digest)
        put.append((stored - began) * 1e3)
        get.append((time.perf_counter() - stored) * 1e3)
    report.figures |= {"put_ms": float(np.median(put)), "get_ms": float(np.median(get))}


def resident(home: Path) -> None:
    """Print this process's proportional set size after updates of two policies, as a child of the benchmark."""
    import psutil

    from workers.training.serve import prepare_torch

    prepare_torch(1)
    update(home, "S", "first", 3)
    print(psutil.Process().memory_full_info().pss / 2**20)


def updates(report: harness.Report) -> None:
    """Measure what whole updates cost, and the state plane under them."""
    home = Path(tempfile.mkdtemp(prefix="flexmarl-training-"))
    repeats = 2 if report.quick else report.settings["repeats"] * 3
    try:
        state_plane(report, home, repeats)
        child = subprocess.run(
            [sys.executable, __file__, "resident", str(home)], capture_output=True, text=True, check=True
        )
        report.figures["pss_mb"] = float(child.stdout)
        for size in ("S", "M"):
            for phase in ("first", "last"):
                report.figures[f"update_ms_{size}_{phase}"] = float(np.median(update(home, size, phase, repeats)))
            for shape in SHAPES:
                forward_backward(report, size, shape)
    finally:
        shutil.rmtree(home)


def main() -> None:
    if sys.argv[1:2] == ["resident"]:
        resident(Path(sys.argv[2]))
        return
    if sys.argv[1:2] == ["peak"]:
        print_peak(*sys.argv[2:])
        return
    report = harness.start("training", __doc__, options)
    harness.pin(report.settings["core"])
    import torch

    torch.set_num_threads(1)
    gate(report, ["S"] if report.quick else report.settings["sizes"], 2 if report.quick else report.settings["repeats"])
    if not report.settings["gate_only"]:
        updates(report)
    report.finish()


if __name__ == "__main__":
    main()
