"""The durable experience store against TransferQueue: rows put, read back whole, and applied, per second.

Both sides run 4 writers and 2 readers as processes of their own, over rows of 4 agents with 1 k tokens each (8 000
bytes); every byte is read back, stacked to tensors and checksummed inside the timing, and rows leave as fast as they
come: TransferQueue clears what was read, the store retires the run before. Durable means that a put returns after its
fsync: rows and payloads are on the disk. TransferQueue keeps rows in memory, in its plain installation.

Figures: `ratio_durable_reference` (payloads in segment files), `ratio_durable_value` (payloads in their rows) and
`ratio_volatile` (in segment files, with no flush anywhere) are the store's rows per second over TransferQueue's, pair
by pair. `flatness` is the store's own speed in a database that holds 200 k rows over its speed at 10 k.

TransferQueue needs a virtual environment of its own; see tests/benchmarks/requirements-store.txt.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
from harness import Report, interleave, paired_ratios, start
from store_rows import BATCH, WRITERS
from store_side import StoreSide

from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.store import schema

UNIT = BATCH * WRITERS
"""Rows of a round are a multiple of it."""
FILL = 10 * UNIT
"""Rows of a round that fills a database."""
SETTINGS = {"shared_buffers": "512MB"}
SIDES = ("durable_reference", "durable_value", "volatile")
HOW = (
    "python3.11 -m venv /tmp/transferqueue && /tmp/transferqueue/bin/pip install -r"
    " tests/benchmarks/requirements-store.txt, then --transferqueue /tmp/transferqueue/bin/python"
)


class TransferQueue:
    """The other side, in a process of the other environment."""

    def __init__(self, python: str, folder: Path) -> None:
        script = Path(__file__).with_name("store_transferqueue.py")
        self._log = (folder / "transferqueue.log").open("w")
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "RAY_TMPDIR": "/tmp", "RAY_USAGE_STATS_ENABLED": "0"},
        )  # fmt: skip
        self.facts = self._answer()

    def round(self, rows: int) -> float:
        """Put and consume rows; returns rows per second."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rows}\n")
        self._process.stdin.flush()
        answer = self._answer()
        if not answer["whole"]:
            raise SystemExit("TransferQueue: what was read is not what was written")
        return rows / float(str(answer["seconds"]))

    def stop(self) -> None:
        """End the process and what it started."""
        self._process.communicate()
        self._log.close()

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"TransferQueue's side ended: {Path(self._log.name).read_text()[-2000:]}")
        answer: dict[str, object] = json.loads(line)
        return answer


def main() -> None:
    """Run all sides in turns, then the store at two sizes."""
    report = start("store", __doc__ or "", _options)
    python = str(report.settings["transferqueue"])
    if report.settings["part"] != "flatness":
        _refuse_without(python)
    with tempfile.TemporaryDirectory(prefix="flexmarl-store-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        server = EmbeddedPostgres(Home(folder / "home"), settings=SETTINGS)
        server.start()
        try:
            if report.settings["part"] != "flatness":
                _compare(report, server, folder, python)
            if report.settings["part"] != "ratios":
                _flatness(report, server, folder)
        finally:
            server.stop()
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transferqueue", default=sys.executable, metavar="PYTHON", help=f"interpreter that has TransferQueue: {HOW}"
    )
    parser.add_argument("--part", choices=("all", "ratios", "flatness"), default="all", help="what to measure")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of each side")
    parser.add_argument("--rows", type=int, default=16 * UNIT, help="rows of a round")
    parser.add_argument("--full", type=int, default=200_000, help="rows of the larger database of `flatness`")


def _refuse_without(python: str) -> None:
    """End with the way to mend it unless the interpreter can run the other side."""
    try:
        asked = subprocess.run([python, "-c", "import transfer_queue"], capture_output=True, text=True, check=False)
        missing = asked.stderr.strip().splitlines()[-1] if asked.returncode else ""
    except OSError as error:
        missing = str(error)
    if missing:
        raise SystemExit(f"store: {python} cannot run TransferQueue ({missing}).\nInstall it apart: {HOW}")


def _database(server: EmbeddedPostgres, name: str) -> str:
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
    with psycopg.connect(server.url_of(name), autocommit=True) as conn:
        schema.apply(conn)
    return server.url_of(name)


def _compare(report: Report, server: EmbeddedPostgres, folder: Path, python: str) -> None:
    rows = 2 * UNIT if report.quick else int(str(report.settings["rows"])) // UNIT * UNIT
    repeats = 2 if report.quick else int(str(report.settings["repeats"]))
    other = TransferQueue(python, folder)
    sides = {}
    try:
        for name in SIDES:
            payloads = None if name == "durable_value" else folder / f"payloads-{name}"
            sides[name] = StoreSide(_database(server, name), payloads, 0, volatile=name == "volatile")
        calls = {name: lambda side=side: side.round(rows) for name, side in sides.items()}  # type: ignore[misc]
        interleave({**calls, "transferqueue": lambda: other.round(rows)}, 1)  # every side once, to warm up
        timed = interleave({**calls, "transferqueue": lambda: other.round(rows)}, repeats)
    finally:
        for side in sides.values():
            side.stop()
        other.stop()
    for name, rates in timed.items():
        report.figures[f"{name}_rows_per_s"] = statistics.median(rates)
    for name in SIDES:
        report.ratio(f"ratio_{name}", paired_ratios(timed[name], timed["transferqueue"]))
    report.settings |= {"rows": rows, "repeats": repeats, "other": other.facts}


def _flatness(report: Report, server: EmbeddedPostgres, folder: Path) -> None:
    """Time the same window in two databases, one filled before; nothing is retired."""
    sizes = {"small": 10_000, "full": 40_000 if report.quick else int(str(report.settings["full"]))}
    window, repeats = (2 * UNIT, 2) if report.quick else (8 * UNIT, 7)
    sides = {}
    try:
        for name, size in sizes.items():
            sides[name] = StoreSide(_database(server, name), folder / f"payloads-{name}", 0)
            for _ in range(-(-size // FILL)):
                _keep(sides[name], FILL)
        timed = interleave({name: lambda side=side: _keep(side, window) for name, side in sides.items()}, repeats)  # type: ignore[misc]
    finally:
        for side in sides.values():
            side.stop()
    for name, rates in timed.items():
        report.figures[f"rows_per_s_{name}"] = statistics.median(rates)
    report.ratio("flatness", paired_ratios(timed["full"], timed["small"]))


def _keep(side: StoreSide, rows: int) -> float:
    rate = side.round(rows)
    side.to_retire = None
    return rate


if __name__ == "__main__":
    main()
