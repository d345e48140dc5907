"""Tokens per second of the torch engine over `transformers.generate`.

256 requests over 64 slots, models of 0.5 M and 2.6 M parameters, log-probabilities asked of both sides. The baseline
generates static batches of 64 by arrival, each as long as its longest reply; a second baseline sorts the requests by
reply length first, which needs to know the lengths in advance. The engine runs in process and as the HTTP child, both
pinned to the baseline's core; the HTTP client has the other cores. Keys without a size hold the lowest over sizes.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
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

    lengths = np.clip(np.exp(rng.normal(np.log(48), 1.0, count)), 4, 256).astype(int)
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


class HttpEngine:
    """The engine child on the measured core, asked by a client on the others."""

    def __init__(self, model: object, core: int, other_cores: set[int]) -> None:
        from workers.transfer.local import LocalTier

        self._home = Path(tempfile.mkdtemp(prefix="engine-benchmark-"))
        self._loop = asyncio.new_event_loop()
        self._measured, self._others = {core}, other_cores
        model.save_pretrained(self._home / "model")
        self._digest = LocalTier(self._home / "home").put(model.state_dict()).digest
        self._process = subprocess.Popen(
            [sys.executable, "-m", "workers.rollout.engines.serve", "--rows", str(SLOTS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=harness.ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(harness.ROOT), str(harness.ROOT / "platform")])},
        )
        self._process.stdin.write(json.dumps(self._config()).encode() + b"\n")
        self._process.stdin.flush()
        self._url = f"http://127.0.0.1:{json.loads(self._process.stdout.readline())['port']}"
        self._loop.run_until_complete(self._post_all("/load", [{"policy": "speaker", "version": 0}]))

    def _config(self) -> dict[str, object]:
        source = {"model": {"type": "folder", "path": str(self._home / "model")}}
        spec = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
        names = ("run_id", "lease_id", "fence", "threads")
        fixed = {"use": "engine", "incarnation": "benchmark", "device": "cpu", "host": "127.0.0.1", "secret": "s"}
        return {
            **fixed,
            **dict.fromkeys(names, 1),
            "home": str(self._home / "home"),
            "model_roots": [str(self._home)],
            "spec": {**spec, "policies": {"speaker": source}},
        }

    def run(self, jobs: list[Job]) -> float:
        """Return tokens per second. Prompts of one reply length travel together, up to 64 in a request."""
        by_length: dict[int, list[Job]] = {}
        for job in jobs:
            by_length.setdefault(job.tokens, []).append(job)
        bodies = [
            {
                "model": "speaker",
                "version": 0,
                "prompt": [job.prompt for job in part],
                "max_tokens": length,
                "seeds": seeds,
            }
            for length, same in by_length.items()
            for first in range(0, len(same), SLOTS)
            for part in [same[first : first + SLOTS]]
            for seeds in [list(range(first, first + len(part)))]
        ]
        os.sched_setaffinity(0, self._others)
        try:
            started = time.perf_counter()
            replies = self._loop.run_until_complete(self._post_all("/v1/completions", bodies))
            elapsed = time.perf_counter() - started
        finally:
            os.sched_setaffinity(0, self._measured)
        return sum(len(choice["logprobs"]) for reply in replies for choice in reply["choices"]) / elapsed

    async def _post_all(self, path: str, bodies: list[dict[str, object]]) -> list[dict[str, object]]:
        headers = {"Authorization": "Bearer s"}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self._url, headers=headers, connector=connector) as session:

            async def post(body: dict[str, object]) -> dict[str, object]:
                async with session.post(path, json={**body, "digest": self._digest}) as response:
                    response.raise_for_status()
                    return await response.json()

            return await asyncio.gather(*(post(body) for body in bodies))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(10)
        self._loop.close()
        shutil.rmtree(self._home)


def architecture(size: str) -> object:
    from workers.models.architecture import Architecture

    hidden, _, _, heads = MODELS[size]
    return Architecture("qwen2", heads, heads, hidden // heads, 10_000.0, 1e-6, 1024)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--core", type=int, default=0, help="core both sides are pinned to, counted from the last")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", default=list(MODELS), choices=list(MODELS))


def main() -> None:
    report = harness.start("engine", __doc__, options)
    cores = os.sched_getaffinity(0)
    core = harness.pin(report.settings["core"])
    import torch

    torch.set_num_threads(1)
    count, repeats = (32, 2) if report.quick else (256, report.settings["repeats"])
    for size in report.settings["sizes"]:
        model = make_model(size)
        over_http = HttpEngine(model, core, cores - {core} or cores)
        engines = {"engine": engine_run(model, size), "http": over_http.run}
        try:
            for name, jobs in workloads(count).items():
                measure(report, f"{name}_{size}", model, engines, jobs, repeats)
        finally:
            over_http.close()
    for name in workloads(1):
        for prefix in ("ratio", "ratio_sorted", "http_ratio", "http_ratio_sorted"):
            for end in ("", "_lower"):
                values = [report.figures[f"{prefix}_{name}_{size}{end}"] for size in report.settings["sizes"]]
                report.figures[f"{prefix}_{name}{end}"] = min(values)
    report.finish()


def measure(
    report: harness.Report,
    key: str,
    model: object,
    engines: dict[str, Callable[[list[Job]], float]],
    jobs: list[Job],
    repeats: int,
) -> None:
    by_length = sorted(jobs, key=lambda job: job.tokens)
    runs = {
        "engine": lambda: engines["engine"](jobs),
        "http": lambda: engines["http"](jobs),
        "by_arrival": lambda: generate_in_batches(model, jobs),
        "by_length": lambda: generate_in_batches(model, by_length),
    }
    generate_in_batches(model, jobs[:4])
    for engine in engines.values():
        engine(jobs[:4])
    rates = harness.interleave(runs, repeats)
    for engine, prefix in (("engine", ""), ("http", "http_")):
        report.ratio(f"{prefix}ratio_{key}", harness.paired_ratios(rates[engine], rates["by_arrival"]))
        report.ratio(f"{prefix}ratio_sorted_{key}", harness.paired_ratios(rates[engine], rates["by_length"]))
    print(f"measured {key}", file=sys.stderr)
    for name, values in rates.items():
        report.figures[f"{name}_tokens_per_s_{key}"] = float(np.median(values))


if __name__ == "__main__":
    main()
