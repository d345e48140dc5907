"""From an optimizer step's commit until all engines serve its weights, and what of the weights a step changes.

The whole system trains a policy of each size on its engines (`manage.py up`: driver, node agent, engine children), one
size after the other, in rounds. A publication lasts from the commit of a version's row until the last engine's row says
that it is served; `fixed_ms` and the seconds per byte come from a line through all of them (Theil and Sen's, which a
step that met other work does not bend). `slope_share` is the seconds per byte over those of a raw copy: as many
processes as there are engines read one plain file of the same bytes from the page cache into memory of their own, all
at once, in every round. Raw readers keep their memory, engines need fresh memory beside the version that they serve;
`slope_share_fresh` is over readers with fresh memory.

`load_share_<size>` leaves all out but the engines (`publish_engines`). `beyond_allowance_<size>_ms` and
`beyond_allowance_published_<size>_ms` are what loads and publications take beyond 1.25 of the readers with fresh memory
and 150 ms; `beyond_allowance_ms` is the most of all loads.

The change of a step is measured on the trainer's own verbs, on real rows: the share of elements whose bits differ in
the published weights, and the bytes of the exact delta over those of the whole, at the learning rates given. What a
host makes of base and delta is compared bit for bit.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import harness
import numpy as np
import psycopg
import torch
from publish_engines import raw_seconds, report_allowance, report_engines, run_of
from publish_model import SIZES, make_model, team, words

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.system import Api, System
from workers.child import IntervalLog
from workers.models.opening import allow
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import AccumulateRequest, BindRequest, StepRequest, TrainRow
from workers.transfer import LocalTier
from workers.transfer.base import Source
from workers.transfer.deltas import Deltas
from workers.transfer.plane import Plane

TIMEOUT_S = 1800.0
PARTS = ["publish", "engines", "changed"]


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
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the engines in that part")
    parser.add_argument("--model", type=Path, default=None, help="folder of a model, in place of random ones by size")
    parser.add_argument("--loads", type=int, default=6, help="versions that engines load in turns with raw readers")


# Publication --------------------------------------------------------------------------------------------------------


def publish(api: Api, conn: psycopg.Connection, model: Path, steps: int, engines: int) -> tuple[list[Published], int]:
    """Train a policy; return how each version got to the engines, but the first ones, and the bytes of one."""
    spec = {
        **run_of(model),
        "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
        "resources": {"rollout_devices": engines},
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
    whole = [Published(*row[:3]) for row in found if row[3] == engines]
    if not whole:
        raise RuntimeError(f"no version was served once by each of {engines} engines: {found}")
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


def line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Return seconds at no bytes, and seconds per byte: medians over all pairs of points of other sizes."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a in points for b in points if b[0] > a[0]]
    slope = statistics.median(slopes)
    return statistics.median(seconds - slope * size for size, seconds in points), slope


def report_publication(
    report: harness.Report, folder: Path, models: Mapping[str, Path], rounds: int, steps: int
) -> None:
    sizes, engines = list(models), int(report.settings["engines"])  # type: ignore[call-overload]
    ours: list[list[tuple[int, float]]] = []
    raw: dict[str, list[list[tuple[int, float]]]] = {"reuse": [], "fresh": []}
    parts: dict[str, list[Published]] = {size: [] for size in sizes}
    alone: dict[str, list[float]] = {size: [] for size in sizes}
    roots = os.pathsep.join(sorted({str(path.parent) for path in models.values()}))
    environment = {"FLEXMARL_CPU_SHARES": str(engines + 2), "FLEXMARL_MODEL_ROOTS": roots}
    with System(folder / "home", environment=environment) as system:
        api = system.api()
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
                        taken = raw_seconds(models[size] / "model.safetensors", kind, engines, steps)
                        rows[-1] += [(size_bytes, seconds) for seconds in taken]
                        alone[size] += taken if kind == "fresh" else []
    if len(sizes) > 1:
        report_line(report, engines, ours, raw)
    for size, found in parts.items():
        for part in ("seconds", "decided", "loaded"):
            report.figures[f"{part}_{size}_ms"] = 1e3 * statistics.median(getattr(each, part) for each in found)
        report_allowance(report, f"published_{size}", [each.seconds for each in found], alone[size])


def report_line(
    report: harness.Report,
    engines: int,
    ours: list[list[tuple[int, float]]],
    raw: Mapping[str, list[list[tuple[int, float]]]],
) -> None:
    """Tell what a publication takes at no bytes, and for each byte beside a raw copy."""
    report.figures["fixed_ms"] = 1e3 * statistics.median(line(each)[0] for each in ours)
    mine = [line(each)[1] for each in ours]
    for kind, rows in raw.items():
        slopes = [line(each)[1] for each in rows]
        name = "slope_share" if kind == "reuse" else f"slope_share_{kind}"
        report.figures[name] = statistics.median(harness.paired_ratios(mine, slopes))
        report.figures[f"raw_gb_per_s_{kind}"] = engines / 1e9 / statistics.median(slopes)
    report.figures["gb_per_s"] = engines / 1e9 / statistics.median(mine)


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


class Beside(Source):
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
        own = report.settings["model"]
        models = (
            {"model": Path(own).resolve()} if own else {each: make_model(Path(name) / each, each) for each in sizes}
        )
        if "changed" in report.settings["parts"]:
            report_change(report, Path(name), size, rates)
        if "engines" in report.settings["parts"]:
            for each, model in models.items():
                report_engines(report, Path(name), each, model, loads)
            beyond = [report.figures[f"beyond_allowance_{each}_ms"] for each in models]
            report.figures["beyond_allowance_ms"] = max(beyond)
        if "publish" in report.settings["parts"]:
            report_publication(report, Path(name), models, rounds, steps)
    report.finish()


if __name__ == "__main__":
    main()
