"""What a trainer does on its device: tokens per second, suspending and resuming, and one policy on several devices."""

import statistics
import time
from typing import Any

import torch
from device_children import POLICY, Stage, accumulate, ragged_rows, step, tokens_of
from harness import Report, interleave, paired_ratios

from tests.support.trainer_child import TrainerChild, bind
from workers.training.wire import BindReply, BindRequest, SuspendReply, SuspendRequest
from workers.transfer import LocalTier

PRODUCTS = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices whose product says how fast a device computes."""
COMPUTED = {"fp32": torch.float32, "bf16": torch.bfloat16}


def training(report: Report, stage: Stage) -> None:
    """Take steps on ragged rows; tell tokens per second, and the share of the device's own speed that they use.

    Operations are those that a step needs: two of each weight that a token meets and two of each pair of tokens that
    see each other, three times over for the gradient. What is computed again to save memory does not count, and the
    head counts where a token of a reply is predicted.
    """
    count, repeats = (8, 2) if report.quick else (256, 8)
    config = stage.config
    longest = min(2048, int(config["max_position_embeddings"]))
    rows = ragged_rows(0, count, int(config["vocab_size"]), longest)
    tokens, replies = tokens_of(rows)
    with stage.trainers(1) as [trainer]:
        bind([trainer], POLICY)
        spent = [_step_s(trainer, version, rows) for version in range(repeats + 1)][1:]
    seconds = statistics.median(spent)
    needed = operations(config, rows, tokens, replies)
    peak = products_per_s(stage.device, stage.precision)
    report.figures |= {
        "tokens_per_s": tokens / seconds,
        "flops_per_s": needed / seconds,
        "product_flops_per_s": peak,
        "flops_share": needed / seconds / peak,
    }
    report.settings |= {"rows": count, "tokens": tokens, "tokens_of_replies": replies}


def _step_s(trainer: TrainerChild, version: int, rows: list[Any]) -> float:
    began = time.perf_counter()
    accumulate(trainer, version, version, rows)
    step(trainer, version, [version])
    return time.perf_counter() - began


def operations(config: dict[str, Any], rows: list[Any], tokens: int, replies: int) -> float:
    """Return the floating-point operations of the gradient of rows."""
    hidden, layers, inner = (int(config[key]) for key in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    heads = int(config["num_attention_heads"])
    width = int(config.get("head_dim") or hidden // heads)
    shared = int(config.get("num_key_value_heads") or heads)
    layer = 2 * hidden * width * (heads + shared) + 3 * hidden * inner
    seen = sum(((len(row.prompt) + len(row.response)) // 4) ** 2 / 2 for row in rows)
    forward = 2 * (tokens * layers * layer + replies * hidden * int(config["vocab_size"]))
    return 3 * (forward + 4 * layers * heads * width * seen)


def products_per_s(device: str, precision: str) -> float:
    """Return the floating-point operations per second of large matrix products on one device, and on one CPU thread."""
    size, threads = PRODUCTS[device], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = torch.randn(size, size, device=device).to(COMPUTED[precision])
        spent = []
        for _ in range(6):
            began = time.perf_counter()
            for _ in range(4):
                torch.mm(one, one)
            settle(device)
            spent.append(time.perf_counter() - began)
        return 4 * 2 * size**3 / statistics.median(spent[1:])
    finally:
        torch.set_num_threads(threads)


def settle(device: str) -> None:
    """Wait until a device has done all that it was asked for."""
    if device == "cuda":
        torch.cuda.synchronize()


def suspending(report: Report, stage: Stage) -> None:
    """Suspend a policy to host memory and resume it, in turns with a plain copy of as many bytes there and back."""
    repeats = 2 if report.quick else 6
    rows = ragged_rows(1, 8, int(stage.config["vocab_size"]), 256)
    with stage.trainers(1) as [trainer]:
        digest = bind([trainer], POLICY).digest
        accumulate(trainer, 0, 0, rows)
        size = _swap(trainer, digest)[1]
        there = torch.zeros(size, dtype=torch.uint8, device=stage.device)
        room = torch.empty(size, dtype=torch.uint8)
        spent = interleave(
            {"plane": lambda: _swap(trainer, digest)[0], "raw": lambda: _copy_s(there, room, stage.device)}, repeats
        )
        replied = step(trainer, 0, [0])
    assert not replied.null_step, "the gradient did not come back"
    report.ratio("suspend_share_of_raw", paired_ratios(spent["raw"], spent["plane"]))
    report.figures |= {"suspend_s": statistics.median(spent["plane"]), "suspended_mb": size / 1e6}


def _swap(trainer: TrainerChild, digest: str) -> tuple[float, int]:
    """Return the seconds of one way off the device and back, and the bytes that went."""
    epoch = f"0:{trainer.incarnation}"
    left = trainer.ask("/suspend", SuspendRequest(POLICY, epoch), SuspendReply)
    back = trainer.ask("/bind", BindRequest(POLICY, 0, digest, resume=left.ticket, accumulator=epoch), BindReply)
    assert back.resumed
    return left.seconds + back.seconds, left.bytes


def _copy_s(there: torch.Tensor, room: torch.Tensor, device: str) -> float:
    began = time.perf_counter()
    room.copy_(there)
    there.copy_(room)
    settle(device)
    return time.perf_counter() - began


def gang(report: Report, stage: Stage) -> None:
    """Hold a policy on every device together: the gradient of one trainer alone, and how much faster it is made."""
    ranks = max(2, stage.devices)
    words = int(stage.config["vocab_size"])
    batches = [ragged_rows(seed, 4 if report.quick else 64, words, 512) for seed in (2, 3)]
    repeats = 1 if report.quick else 5
    gradients, rates = {}, {}
    with stage.trainers(ranks) as children:
        first = bind(children[:1], POLICY)
        for name, held in (("alone", children[:1]), ("together", children)):
            bind(held, POLICY, 1, first)
            replied = _both(held[0], 0, batches)
            gradients[name] = LocalTier(stage.home, "reader").get(replied.state)["first"].double()
            spent = []
            for version in range(1, repeats + 1):
                began = time.perf_counter()
                _both(held[0], version, batches)
                spent.append(time.perf_counter() - began)
            rates[name] = sum(tokens_of(rows)[0] for rows in batches) / statistics.median(spent)
    distance = (gradients["together"] - gradients["alone"]).norm() / gradients["alone"].norm()
    report.figures |= {
        "gang_ranks": float(ranks),
        "gang_gradient_distance": float(distance),
        "gang_tokens_per_s": rates["together"],
        "gang_over_one": rates["together"] / rates["alone"],
    }


def _both(leader: TrainerChild, version: int, batches: list[list[Any]]) -> Any:
    numbers = [2 * version + place for place in range(len(batches))]
    for number, rows in zip(numbers, batches, strict=True):
        accumulate(leader, version, number, rows)
    return step(leader, version, numbers)
