"""What every benchmark shares: arguments, fair timing on a shared machine, one report format.

Machines are noisy, so both sides of a comparison run in one go, pinned to a core and interleaved, and a figure is the
median of paired ratios. `_lower` is the low end of its two-sided 90 % bootstrap interval: a target is reached when that
end reaches it.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
for _source_root in (ROOT, ROOT / "platform"):
    if str(_source_root) not in sys.path:
        sys.path.insert(0, str(_source_root))


@dataclass
class Report:
    """Figures of one benchmark run; `finish` prints and writes them."""

    benchmark: str
    quick: bool
    json_path: Path | None
    figures: dict[str, float] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)

    def finish(self) -> None:
        """Print the table, and write the JSON file when one was asked for."""
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        self.settings = {"quick": self.quick, **machine, **self.settings}
        width = max((len(key) for key in self.figures), default=1)
        print(f"{self.benchmark}  {json.dumps(self.settings, default=str)}")
        for key, value in self.figures.items():
            print(f"  {key:<{width}}  {value:12.4g}")
        if self.json_path is not None:
            body = {"benchmark": self.benchmark, "figures": self.figures, "settings": self.settings}
            self.json_path.write_text(json.dumps(body, indent=2, default=str) + "\n", encoding="utf-8")

    def ratio(self, key: str, ratios: Sequence[float]) -> None:
        """Record the median of paired ratios as `key` and its lower end as `key_lower`."""
        self.figures[key], self.figures[f"{key}_lower"] = median_and_lower_end(ratios)


def start(benchmark: str, about: str, options: Callable[[argparse.ArgumentParser], None] | None = None) -> Report:
    """Read `--quick`, `--json FILE` and the benchmark's own options; the latter become settings."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="a small run that shows the harness works")
    parser.add_argument("--json", type=Path, default=None, help="file to write the report to")
    if options is not None:
        options(parser)
    given = vars(parser.parse_args())
    return Report(benchmark, given.pop("quick"), given.pop("json"), settings=given)


def interleave(runs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Call each run `repeats` times, in turns, every second turn backwards; return each run's results in order."""
    results: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        names = list(runs) if turn % 2 == 0 else list(reversed(runs))
        for name in names:
            results[name].append(runs[name]())
    return results


def paired_ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return over / under, pair by pair."""
    return [a / b for a, b in zip(over, under, strict=True)]


def median_and_lower_end(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 5 % point of its bootstrap distribution."""
    sample = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(0).choice(sample, size=(2000, len(sample)))
    return float(np.median(sample)), float(np.quantile(np.median(drawn, axis=1), 0.05))


def pin(core: int, pid: int = 0) -> int:
    """Pin a process to one of the cores it may use (counted from the last); return the core."""
    allowed = sorted(os.sched_getaffinity(pid))
    chosen = allowed[-1 - core % len(allowed)]
    os.sched_setaffinity(pid, {chosen})
    return chosen
