"""Engines that load versions, in turns with raw readers of as many bytes.

All engines are told at once to load a version that was just put, and in turns as many processes read one plain file of
the same bytes from the page cache, onto the device where that is a GPU. `load_share_<size>` is time over raw time, pair
by pair, with readers that keep their memory; `load_share_fresh_<size>` with readers that need fresh memory, as engines
do beside the version that they serve.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
from device_children import CHAT_TEMPLATE, POLICY, Stage, gpus
from safetensors.torch import load_file

from tests.support.engines import RunningEngine
from workers.transfer import LocalTier

SHARE, FIXED_S = 1.25, 0.15
"""What a publication may take: so much of the medium's time for its bytes, and so many seconds."""
READER = """
import sys, numpy
path, fresh, device, held = sys.argv[1], sys.argv[2] == "fresh", sys.argv[3], None
if device != "cpu":
    import torch
    torch.zeros(1, device=device)
for line in sys.stdin:
    with open(path, "rb", buffering=0) as file:
        size = file.seek(0, 2)
        file.seek(0)
        if held is None or fresh:
            held = None
            held = memoryview(numpy.empty(size, dtype=numpy.uint8))
        got = 0
        while got < size:
            got += file.readinto(held[got : got + (8 << 20)])
    if device != "cpu":
        there = torch.frombuffer(held, dtype=torch.uint8).to(device)
        torch.cuda.synchronize()
    print(got, flush=True)
"""
Readers = list["subprocess.Popen[bytes]"]


@contextmanager
def readers(path: Path, kind: str, places: list[str]) -> Iterator[Readers]:
    """Start a process for each place that reads a file onto it whenever it is told to, once it has read it."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(path), kind, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for place in places
    ]
    try:
        told(children)
        yield children
    finally:
        for child in children:
            child.stdin.close()
            child.wait()


def told(children: Readers) -> float:
    """Have all read at once; return the seconds until the last has."""
    began = time.perf_counter()
    for child in children:
        child.stdin.write(b"go\n")
        child.stdin.flush()
    for child in children:
        child.stdout.readline()
    return time.perf_counter() - began


def raw_seconds(path: Path, kind: str, engines: int, times: int) -> list[float]:
    with readers(path, kind, ["cpu"] * engines) as children:
        return [told(children) for _ in range(times)]


def run_of(model: Path) -> dict[str, Any]:
    """Return agents, environment and policy of a run that trains a folder's model, in the precision it is kept in."""
    precision = precision_of(model)
    roles = ("solver", "reviser") if (model / CHAT_TEMPLATE).exists() else ("speaker", "listener")
    policy = {"model": {"type": "folder", "path": str(model)}, "warmup": None, "precision": precision}
    return {
        "agents": {role: {"policy": POLICY} for role in roles},
        "environment": {"type": "sums" if "solver" in roles else "reference_game"},
        "policies": {POLICY: policy},
    }


def precision_of(model: Path) -> str:
    """Return the precision that a folder's weights are kept in."""
    return "bf16" if Stage(model, model, "cpu").config.get("dtype") == "bfloat16" else "fp32"


def report_engines(report: harness.Report, folder: Path, size: str, model: Path, loads: int) -> None:
    home = folder / f"engines-{size}"
    home.mkdir()
    count, device = int(report.settings["engines"]), str(report.settings["device"])  # type: ignore[call-overload]
    stage = Stage(home, model, device, precision_of(model), gpus() if device == "cuda" else 1)
    path = model / "model.safetensors"
    state, tier = load_file(path), LocalTier(home, "trainer")
    times: dict[str, list[float]] = {"ours": [], "reuse": [], "fresh": []}
    places = [stage.place(number) for number in range(count)]
    with (
        stage.engines(count) as engines,
        readers(path, "reuse", places) as reuse,
        readers(path, "fresh", places) as fresh,
    ):
        for version in range(loads + 3):
            for tensor in state.values():
                tensor.view(-1)[:: 2**10] += 1e-2
            digest = tier.put(state).digest
            ours, raw = loaded(engines, version, digest), (told(reuse), told(fresh))
            for key, seconds in zip(times, (ours, *raw), strict=True):
                times[key] += [seconds] * (version >= 3)
            tier.collect({digest}, -1.0)
    report.figures[f"loaded_alone_{size}_ms"] = 1e3 * statistics.median(times["ours"])
    for kind in ("reuse", "fresh"):
        name = f"load_share_{size}" if kind == "reuse" else f"load_share_{kind}_{size}"
        ratios = harness.paired_ratios(times["ours"], times[kind])
        report.figures[name] = statistics.median(ratios)
        report.figures[f"{name}_upper"] = -harness.median_and_lower_end([-ratio for ratio in ratios])[1]
    report_allowance(report, size, times["ours"], times["fresh"])


def report_allowance(report: harness.Report, size: str, ours: list[float], raw: list[float]) -> None:
    """Tell what raw readers took, and what is beyond what a publication may take."""
    medium = statistics.median(raw)
    report.figures[f"raw_{size}_ms"] = 1e3 * medium
    report.figures[f"beyond_allowance_{size}_ms"] = 1e3 * (statistics.median(ours) - SHARE * medium - FIXED_S)


def loaded(engines: list[RunningEngine], version: int, digest: str) -> float:
    """Have all engines load a version at once; return the seconds until the last serves it."""

    async def all_at_once() -> None:
        await asyncio.gather(*(engine.load(POLICY, version, digest) for engine in engines))

    began = time.perf_counter()
    asyncio.run(all_at_once())
    return time.perf_counter() - began
