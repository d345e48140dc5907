"""Trainers and engines on one kind of device, in parts that are chosen by `--part`.

`parity`: mean distance between the trainer's log-probabilities and those that an engine reported for its own replies.
`training`: tokens per second of a trainer, and the operations that they need over those of large matrix products.
`suspending`: seconds of a plain copy of a training state to the host and back, over those of suspending and resuming.
`gang`: one policy on all devices together: distance of its gradient from that of one device, and its speed over it.
`sleeping`: an engine that gives its memory back and wakes up again.
"""

import argparse
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import device_children
import device_serving
import device_training
import structlog
from device_children import Stage
from harness import Report, start

PARTS: dict[str, Callable[[Report, Stage], None]] = {
    "parity": device_serving.parity,
    "training": device_training.training,
    "suspending": device_training.suspending,
    "gang": device_training.gang,
    "sleeping": device_serving.sleeping,
}


def main() -> None:
    def options(parser: argparse.ArgumentParser) -> None:
        device_children.options(parser)
        parser.add_argument("--part", choices=list(PARTS), nargs="+", default=list(PARTS), help="what to measure")
        parser.add_argument("--engines", choices=["torch", "vllm"], nargs="+", default=["torch"], help="of `parity`")

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    report = start("device", "Trainers and engines on one kind of device", options)
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as name:
        for part in report.settings["part"]:  # type: ignore[attr-defined]
            PARTS[part](report, device_children.stage_of(report.settings, Path(name) / part))
    report.finish()


if __name__ == "__main__":
    main()
