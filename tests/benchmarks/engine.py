"""Tokens per second of the torch engine over `transformers.generate`.

256 requests over 64 slots, models of 0.5 M and 2.6 M parameters, log-probabilities asked of both sides. The baseline
generates static batches of 64 by arrival, each as long as its longest reply; a second baseline sorts the requests by
reply length first, which needs to know the lengths in advance. The engine runs in process and as the HTTP child.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import harness
import numpy as np

SLOTS = 64
VOCABULARY = 64
MODELS = {"0_5m": (128, 3, 256, 4), "2_6m": (256, 4, 512, 4)}
"""hidden, layers, MLP, heads"""


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    tokens: int


def workloads(count: int) -> dict[str, list[Job]]:
    """Return equal and log-normal reply lengths; prompts of the second are ragged."""
    rng = np.random.default_rng(0)

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(rng.integers(3, VOCABULARY, length).tolist())

    lengths = np.clip(np.exp(rng.normal(np.log(48), 1.0, count)), 4, 384).astype(int)
    return {
        "equal_lengths": [Job(prompt(16), 128) for _ in range(count)],
        "lognormal_lengths": [Job(prompt(int(rng.integers(8, 25))), int(length)) for length in lengths],
    }


def make_model(size: str) -> object:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    hidden, layers, mlp, heads = MODELS[size]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        initializer_range=hidden**-0.5,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).eval()


def generate_in_batches(model: object, jobs: list[Job]) -> float:
    """Return useful tokens per second of `transformers.generate`."""
    import torch

    started, made = time.perf_counter(), 0
    for first in range(0, len(jobs), SLOTS):
        batch = jobs[first : first + SLOTS]
        width = max(len(job.prompt) for job in batch)
        ids = torch.tensor([[0] * (width - len(job.prompt)) + list(job.prompt) for job in batch])
        seen = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in batch])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=seen,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max(job.tokens for job in batch),
                return_dict_in_generate=True,
                output_logits=True,
            )
            logprobs = torch.log_softmax(torch.stack(out.logits, 1), -1)
            chosen = logprobs.gather(2, out.sequences[:, width:, None])[..., 0]
        for row, job in enumerate(batch):
            made += len(chosen[row, : job.tokens].tolist())
    return made / (time.perf_counter() - started)


def engine_run(model: object, size: str) -> Callable[[list[Job]], float]:
    from workers.rollout.engines.requests import Request
    from workers.rollout.engines.torch_engine import TorchEngine

    engine = TorchEngine("cpu", rows=SLOTS)
    engine.load("p", 0, "", engine.prepare(model.state_dict(), architecture(size)))

    def run(jobs: list[Job]) -> float:
        started, made = time.perf_counter(), 0
        engine.submit([Request(str(i), "p", job.prompt, job.tokens, seed=i) for i, job in enumerate(jobs)])
        while engine.busy:
            made += sum(len(ended.token_ids) for ended in engine.step())
        return made / (time.perf_counter() - started)

    return run


def architecture(size: str) -> object:
    from workers.models.architecture import Architecture

    hidden, _, _, heads = MODELS[size]
    return Architecture("qwen2", heads, heads, hidden // heads, 10_000.0, 1e-6, 1024)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--core", type=int, default=0, help="core both sides are pinned to, counted from the last")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", default=list(MODELS), choices=list(MODELS))


def main() -> None:
    report = harness.start("engine", __doc__, options)
    harness.pin(report.settings["core"])
    import torch

    torch.set_num_threads(1)
    count, repeats = (32, 2) if report.quick else (256, report.settings["repeats"])
    for size in report.settings["sizes"]:
        model = make_model(size)
        ours = engine_run(model, size)
        for name, jobs in workloads(count).items():
            measure(report, f"{name}_{size}", model, ours, jobs, repeats)
    report.finish()


def measure(
    report: harness.Report,
    key: str,
    model: object,
    ours: Callable[[list[Job]], float],
    jobs: list[Job],
    repeats: int,
) -> None:
    by_length = sorted(jobs, key=lambda job: job.tokens)
    runs = {
        "engine": lambda: ours(jobs),
        "by_arrival": lambda: generate_in_batches(model, jobs),
        "by_length": lambda: generate_in_batches(model, by_length),
    }
    for run in runs.values():
        run()
    rates = harness.interleave(runs, repeats)
    report.ratio(f"ratio_{key}", harness.paired_ratios(rates["engine"], rates["by_arrival"]))
    report.ratio(f"ratio_sorted_{key}", harness.paired_ratios(rates["engine"], rates["by_length"]))
    for name, values in rates.items():
        report.figures[f"{name}_tokens_per_s_{key}"] = float(np.median(values))


if __name__ == "__main__":
    main()
