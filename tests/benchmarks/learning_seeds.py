"""What schedules and normalisations do to learning at equal samples: the real core over tables of logits, in memory.

No service stands between, so the machine's load changes nothing: facts reach the core in an order that the seed gives.
The same questions through all services and with models: `learning_compared.py`.
"""

import argparse
import statistics
from collections.abc import Sequence

from harness import Report, start

from tests.conformance.test_learning_seeds import ALIKE, SCHEDULES, UNLIKE, normalised, played


def tell(report: Report, name: str, found: Sequence[float]) -> None:
    report.figures[name] = statistics.mean(found)
    report.figures[f"{name}_min"] = min(found)


def schedules(report: Report, seeds: Sequence[int]) -> None:
    """Each schedule beside the synchronous one of the same seed."""
    base = [played(seed, "sync").expected() for seed in seeds]
    tell(report, "sync", base)
    for name, (preset, changes, _) in SCHEDULES.items():
        clusters = [played(seed, preset, **changes) for seed in seeds]
        tell(report, name, [cluster.expected() for cluster in clusters])
        shares = [cluster.expected() / own for cluster, own in zip(clusters, base, strict=True)]
        tell(report, f"{name}_share_of_sync", shares)
        report.figures[f"{name}_own_lag"] = max(max(cluster.lags) for cluster in clusters)
        report.figures[f"{name}_rows"] = statistics.mean(len(cluster.trained) for cluster in clusters)
        print(name, shares, flush=True)


def scales(report: Report, seeds: Sequence[int]) -> None:
    for units, paid in (("unlike", UNLIKE), ("alike", ALIKE)):
        for key in ("episode_group", "team"):
            tell(report, f"{units}_{key}", [normalised(seed, key, paid) for seed in seeds])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)


def main() -> None:
    report = start("learning_seeds", "learning at equal samples, in memory", options)
    seeds = range(1, 2 if report.quick else 1 + int(str(report.settings["seeds"])))
    scales(report, seeds)
    schedules(report, seeds)
    report.finish()


if __name__ == "__main__":
    main()
