"""What an engine does on its device beside a trainer: log-probabilities of both, and memory that is given back."""

import asyncio
import statistics
import subprocess
import time
from typing import Any

import numpy as np
import psutil
from device_children import POLICY, Stage, accumulate
from harness import Report

from tests.support.engines import RunningEngine
from tests.support.trainer_child import bind
from workers.rollout.engines.wire import CompletionChoice
from workers.training.wire import BindReply, TrainRow

PROMPT = 24


def prompts(words: int, count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, words, PROMPT).tolist() for _ in range(count)]


def replies(engine: RunningEngine, bound: BindReply, asked: list[list[int]], tokens: int) -> list[CompletionChoice]:
    """Return the engine's reply to each prompt, in their order."""
    held = {"version": bound.version, "digest": bound.digest}
    given = {"model": POLICY, "prompt": asked, "max_tokens": tokens, "seeds": list(range(len(asked))), **held}
    return sorted(asyncio.run(engine.complete(**given)), key=lambda choice: choice.index)


def parity(report: Report, stage: Stage) -> None:
    """Tell how far the trainer's log-probabilities are from those that each engine reported for its own replies."""
    count, tokens = (4, 8) if report.quick else (64, 128)
    asked = prompts(int(stage.config["vocab_size"]), count)
    engines = report.settings["engines"]
    with stage.trainers(1) as [trainer]:
        bound = bind([trainer], POLICY)
        for number, kind in enumerate(engines):
            with stage.engines(1, kind, first=1) as [engine]:
                asyncio.run(engine.load(POLICY, bound.version, bound.digest))
                choices = replies(engine, bound, asked, tokens)
            rows = [_row(prompt, choice) for prompt, choice in zip(asked, choices, strict=True)]
            stats = accumulate(trainer, 0, number, rows)
            report.figures[f"logprob_gap_{kind}"] = stats["logprob_gap_sum"] / stats["tokens"]
            report.figures[f"logprob_gap_{kind}_most"] = stats["logprob_gap_max"]
    report.settings |= {"replies": count, "tokens": tokens}


def _row(prompt: list[int], choice: CompletionChoice) -> TrainRow:
    return TrainRow(
        prompt=np.array(prompt, "<i4").tobytes(),
        response=np.array(choice.token_ids, "<i4").tobytes(),
        logprobs=np.array(choice.logprobs, "<f4").tobytes(),
        allowed=b"",
        temperature=1.0,
        advantages=[1.0],
        weight=1.0,
    )


def sleeping(report: Report, stage: Stage) -> None:
    """Put an engine to sleep and wake it: what of its memory comes back, and whether it then says what it said."""
    count, tokens, repeats = (4, 8, 2) if report.quick else (64, 64, 5)
    asked = prompts(int(stage.config["vocab_size"]), count)
    slept, woke, back = [], [], []
    with stage.trainers(1) as [trainer], stage.engines(1) as [engine]:
        bound = bind([trainer], POLICY)
        asyncio.run(engine.load(POLICY, bound.version, bound.digest))
        before = replies(engine, bound, asked, tokens)
        for _ in range(repeats):
            held = memory_of(engine, stage)
            freed, seconds = _asked(engine, "/sleep")
            slept.append(seconds)
            back.append((held - memory_of(engine, stage)) / freed["bytes"])
            woke.append(_asked(engine, "/wake")[1])
            after = replies(engine, bound, asked, tokens)
            assert [one.token_ids for one in after] == [one.token_ids for one in before], "it says something else"
    report.figures |= {
        "sleep_s": statistics.median(slept),
        "wake_s": statistics.median(woke),
        "asleep_mb_let_go": freed["bytes"] / 1e6,
        "asleep_share_returned": statistics.median(back),
    }


def _asked(engine: RunningEngine, path: str) -> tuple[dict[str, Any], float]:
    began = time.perf_counter()
    status, answer = asyncio.run(engine.ask(path, {}))
    assert status == 200, answer
    return answer, time.perf_counter() - began


def memory_of(engine: RunningEngine, stage: Stage) -> float:
    """Return the bytes that an engine's process holds on its device."""
    if stage.device == "cpu":
        return float(psutil.Process(engine.child.pid).memory_info().rss)
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {int(pid): 2**20 * float(size) for pid, size in (line.split(",") for line in listed.splitlines())}
    return used[engine.child.pid]
