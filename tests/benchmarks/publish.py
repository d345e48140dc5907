"""From an optimizer step's commit until four engines serve its weights, and what of the weights a step changes.

The whole system trains a policy of each size on four engines (`manage.py up`: driver, node agent, engine children), one
size after the other, in rounds. A publication lasts from the commit of a version's row until the last engine's row says
that it is served; `fixed_ms` and the seconds per byte come from a line through all of them (Theil and Sen's, which a
step that met other work does not bend). `slope_share` is the seconds per byte over those of a raw copy: as many
processes as there are engines read one plain file of the same bytes from the page cache into memory of their own, all
at once, in every round. Raw readers keep their memory, engines need fresh memory beside the version that they serve;
`slope_share_fresh` is over readers with fresh memory.

`load_share_<size>` leaves all out but the engines: four children are told at once to load a version that was just put,
and in turns the raw readers read as many bytes; time over raw time, pair by pair.

The change of a step is measured on the trainer's own verbs, on real rows: the share of elements whose bits differ in
the published weights, and the bytes of the exact delta over those of the whole, at the learning rates given. What a
host makes of base and delta is compared bit for bit.
"""

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import harness
import numpy as np
import psycopg
import torch
from publish_model import SIZES, make_model, team, weights, words

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.engines import RunningEngine
from tests.support.system import Api, System
from workers.child import IntervalLog
from workers.models.opening import allow
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import AccumulateRequest, BindRequest, StepRequest, TrainRow
from workers.transfer import LocalTier
from workers.transfer.deltas import Deltas
from workers.transfer.plane import Plane

ENGINES = 4
TIMEOUT_S = 1800.0
PARTS = ["publish", "engines", "changed"]
READER = """
import sys, mmap, numpy
path, fresh, held = sys.argv[1], sys.argv[2] == "fresh", None
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
    print(got, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Published:
    """One version's way to the engines, in seconds from its commit."""

    seconds: float
    decided: float
    """Until the commands were written."""
    loaded: float
    """What the slowest engine said that its load took."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", default=["tiny", "50m", "200m"], choices=list(SIZES))
    parser.add_argument("--steps", type=int, default=6, help="versions of a round and size that count")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 1e-5, 1e-6], help="learning rates")
    parser.add_argument("--changed-size", default="25m", choices=list(SIZES))
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--loads", type=int, default=6, help="versions that engines load in turns with raw readers")


# Publication --------------------------------------------------------------------------------------------------------


def publish(api: Api, conn: psycopg.Connection, model: Path, steps: int) -> tuple[list[Published], int]:
    """Train a policy; return how each version got to the engines, but the first ones, and the bytes of one."""
    spec = {
        **team(),
        "policies": {"speaker": {"model": {"type": "folder", "path": str(model)}, "warmup": None}},
        "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
        "resources": {"rollout_devices": ENGINES},
        "evaluation": {"every_steps": 10_000, "tasks": 1},
        "checkpoints": {"every_steps": 10_000},
        "budget": {"train_steps": steps + 3, "target": None},
    }
    run = api.create_run(name=f"publish {model.name}", spec=spec)
    ended(conn, run["no"])
    found = conn.execute(
        """
        SELECT extract(epoch FROM max(c.done_at) - v.at)::float8, extract(epoch FROM min(c.created_at) - v.at)::float8,
               max((e.body ->> 'seconds')::float8), count(*)
        FROM store.policy_version v
        JOIN store.command c ON c.run_id = v.run_id AND c.kind = 'load_weights' AND c.status = 'done'
          AND (c.body ->> 'version')::int = v.version AND c.body ->> 'policy' = v.policy
        JOIN store.event e ON e.run_id = v.run_id AND e.kind = 'weights_served'
          AND (e.body ->> 'command_no')::int = c.no
        WHERE v.run_id = %s AND v.version BETWEEN 3 AND %s GROUP BY v.version, v.at ORDER BY v.version
        """,
        [run["no"], steps + 2],
    ).fetchall()
    whole = [Published(*row[:3]) for row in found if row[3] == ENGINES]
    if not whole:
        raise RuntimeError(f"no version was served once by each of {ENGINES} engines: {found}")
    return whole, (model / "model.safetensors").stat().st_size


def ended(conn: psycopg.Connection, run_id: int) -> None:
    """Wait for a run's end on its row: the web process may be kept waiting for long by what is measured."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        [found] = conn.execute(
            "SELECT status, reason_text FROM store.run_state WHERE run_id = %s", [run_id]
        ).fetchall() or [("queued", "")]
        if found[0] == "completed":
            return
        if found[0] in ("failed", "cancelled", "killed"):
            raise RuntimeError(f"the run {found[0]}: {found[1]}")
        time.sleep(0.5)
    raise TimeoutError(f"the run is {found}")


@contextmanager
def readers(path: Path, kind: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes that read a file whenever they are told to, once they have read it."""
    command = [sys.executable, "-c", READER, str(path), kind]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(ENGINES)]
    try:
        told(children)
        yield children
    finally:
        for child in children:
            child.stdin.close()
            child.wait()


def told(children: list[subprocess.Popen[bytes]]) -> float:
    """Have all read at once; return the seconds until the last has."""
    began = time.perf_counter()
    for child in children:
        child.stdin.write(b"go\n")
        child.stdin.flush()
    for child in children:
        child.stdout.readline()
    return time.perf_counter() - began


def raw_seconds(path: Path, kind: str, times: int) -> list[float]:
    with readers(path, kind) as children:
        return [told(children) for _ in range(times)]


def line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Return seconds at no bytes, and seconds per byte: medians over all pairs of points of other sizes."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a in points for b in points if b[0] > a[0]]
    slope = statistics.median(slopes)
    return statistics.median(seconds - slope * size for size, seconds in points), slope


def report_publication(report: harness.Report, folder: Path, sizes: list[str], rounds: int, steps: int) -> None:
    ours: list[list[tuple[int, float]]] = []
    raw: dict[str, list[list[tuple[int, float]]]] = {"reuse": [], "fresh": []}
    parts: dict[str, list[Published]] = {size: [] for size in sizes}
    environment = {"FLEXMARL_CPU_SHARES": str(ENGINES + 2), "FLEXMARL_MODEL_ROOTS": str(folder)}
    with System(folder / "home", environment=environment) as system:
        api = system.api()
        models = {size: make_model(folder / size, size) for size in sizes}
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            for turn in range(rounds):
                ours.append([])
                for kept in raw.values():
                    kept.append([])
                for size in sizes if turn % 2 == 0 else reversed(sizes):
                    found, size_bytes = publish(api, conn, models[size], steps)
                    ours[-1] += [(size_bytes, each.seconds) for each in found]
                    parts[size] += found
                    for kind, rows in raw.items():
                        taken = raw_seconds(models[size] / "model.safetensors", kind, steps)
                        rows[-1] += [(size_bytes, seconds) for seconds in taken]
    report.figures["fixed_ms"] = 1e3 * statistics.median(line(each)[0] for each in ours)
    mine = [line(each)[1] for each in ours]
    for kind, rows in raw.items():
        slopes = [line(each)[1] for each in rows]
        name = "slope_share" if kind == "reuse" else f"slope_share_{kind}"
        report.figures[name] = statistics.median(harness.paired_ratios(mine, slopes))
        report.figures[f"raw_gb_per_s_{kind}"] = ENGINES / 1e9 / statistics.median(slopes)
    report.figures["gb_per_s"] = ENGINES / 1e9 / statistics.median(mine)
    for size, found in parts.items():
        for part in ("seconds", "decided", "loaded"):
            report.figures[f"{part}_{size}_ms"] = 1e3 * statistics.median(getattr(each, part) for each in found)


# Engines alone ------------------------------------------------------------------------------------------------------


def report_engines(report: harness.Report, folder: Path, size: str, loads: int) -> None:
    model = make_model(folder / f"loaded-{size}", size)
    home = folder / f"engines-{size}"
    home.mkdir()
    policy = {"big": {"model": {"type": "folder", "path": str(model)}}}
    state, tier = weights(size, len(words())), LocalTier(home, "trainer")
    engines = [RunningEngine("torch", home, more=policy, life=f"life-{number}") for number in range(ENGINES)]
    times: dict[str, list[float]] = {"ours": [], "reuse": [], "fresh": []}
    try:
        for engine in engines:
            engine.ready()
        path = model / "model.safetensors"
        with readers(path, "reuse") as reuse, readers(path, "fresh") as fresh:
            for version in range(loads + 3):
                for tensor in state.values():
                    tensor.view(-1)[:: 2**10] += 1e-3
                digest = tier.put(state).digest
                ours, raw = loaded(engines, version, digest), (told(reuse), told(fresh))
                for key, seconds in zip(times, (ours, *raw), strict=True):
                    times[key] += [seconds] * (version >= 3)
                tier.collect({digest}, -1.0)
    finally:
        for engine in engines:
            engine.child.stop(20.0)
    report.figures[f"loaded_alone_{size}_ms"] = 1e3 * statistics.median(times["ours"])
    for kind in ("reuse", "fresh"):
        name = f"load_share_{size}" if kind == "reuse" else f"load_share_{kind}_{size}"
        ratios = harness.paired_ratios(times["ours"], times[kind])
        report.figures[name] = statistics.median(ratios)
        report.figures[f"{name}_upper"] = -harness.median_and_lower_end([-ratio for ratio in ratios])[1]


def loaded(engines: list[RunningEngine], version: int, digest: str) -> float:
    """Have all engines load a version at once; return the seconds until the last serves it."""

    async def all_at_once() -> None:
        await asyncio.gather(*(engine.load("big", version, digest) for engine in engines))

    began = time.perf_counter()
    asyncio.run(all_at_once())
    return time.perf_counter() - began


# What a step changes ------------------------------------------------------------------------------------------------


def rows_of(trainer: Trainer, number: int) -> list[TrainRow]:
    """Return rows as episodes leave them: prompts and replies of the game's words, compared with each other."""
    rng = random.Random(number)
    count = len(words())
    rows = []
    for _ in range(16):
        prompt, reply = (
            np.array([rng.randrange(3, count) for _ in range(length)], np.int32).tobytes() for length in (12, 6)
        )
        rows.append(TrainRow(prompt, reply, np.full(6, -3.0, np.float32).tobytes(), b"", 1.0, [rng.gauss(0, 1)], 1.0))
    return rows


def stepped(home: Path, model: Path, precision: str, rate: float) -> tuple[str, str]:
    """Bind a policy and take two optimizer steps; return the digests of the last two versions."""
    policy = {"model": {"type": "folder", "path": str(model)}, "warmup": None, "precision": precision}
    spec = ExperimentSpec.model_validate({**team(), "policies": {"speaker": policy}})
    allow(ModelRoots((str(model.parent),)))
    trainer = Trainer(spec, 1, "a", str(home), "cpu", IntervalLog())
    digests = [trainer.bind(BindRequest("speaker", CREATE)).digest]
    for version in range(2):
        trainer.accumulate(AccumulateRequest("speaker", f"{version}:a", version, 0.01, rows_of(trainer, version)))
        step = StepRequest("speaker", f"{version}:a", [version], version + 1, rate)
        digests.append(trainer.step(step).digest)
    trainer.settle()
    return digests[1], digests[2]


class Beside:
    """The state plane of another host, without a network between."""

    name = "beside"

    def __init__(self, home: Path) -> None:
        self._tier = LocalTier(home, "beside")
        self._deltas = Deltas(LocalTier(home, "deltas"))
        self.sent = 0

    def manifest(self, digest: str) -> bytes:
        return self._tier.manifest(digest)

    def fetch(self, _: str, chunk: str, room: memoryview) -> None:
        room[:] = self._tier.chunk(chunk).read_bytes()
        self.sent += len(room)

    def delta(self, digest: str, bases: list[str], most: float) -> str | None:
        return self._deltas.get(digest, bases, most)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def report_change(report: harness.Report, folder: Path, size: str, rates: list[float]) -> None:
    model = make_model(folder / f"changed-{size}", size)
    for precision in ("fp32", "bf16"):
        for rate in rates:
            home, key = folder / f"{precision}-{rate:g}", f"{precision}_{rate:g}"
            old, new = stepped(home, model, precision, rate)
            tier = LocalTier(home, "reader")
            before, after = tier.get(old), tier.get(new)
            changed = sum(int((bits(after[name]) != bits(before[name])).sum()) for name in after)
            report.figures[f"changed_share_{key}"] = changed / sum(tensor.numel() for tensor in after.values())
            source, here = Beside(home), folder / f"{key}-here"
            Plane(LocalTier(here), sources=[source]).bring(old)
            source.sent = 0
            began = time.perf_counter()
            whole = Plane(LocalTier(here), sources=[source]).bring(new, 1.0).bytes
            report.figures[f"delta_seconds_{key}"] = time.perf_counter() - began
            report.figures[f"delta_bytes_ratio_{key}"] = source.sent / whole
            found = LocalTier(here, "reader").get(new)
            if not all(torch.equal(found[name], after[name]) for name in after):
                raise AssertionError("what was made of the base is not the version")


def main() -> None:
    report = harness.start("publish", __doc__ or "", options)
    sizes, steps, rounds = (report.settings[name] for name in ("sizes", "steps", "rounds"))
    rates, size, loads = (report.settings[name] for name in ("rates", "changed_size", "loads"))
    if report.quick:
        sizes, steps, rounds, rates, size, loads = ["tiny", "25m"], 2, 1, [1e-6], "tiny", 2
    report.settings |= {"sizes": sizes, "steps": steps, "rounds": rounds, "rates": rates, "changed_size": size}
    report.settings["load_before"] = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as name:
        Path(name).chmod(0o711)
        if "changed" in report.settings["parts"]:
            report_change(report, Path(name), size, rates)
        if "engines" in report.settings["parts"]:
            for each in sizes:
                report_engines(report, Path(name), each, loads)
        if "publish" in report.settings["parts"]:
            report_publication(report, Path(name), sizes, rounds, steps)
    report.finish()


if __name__ == "__main__":
    main()
