"""Runs the parts of a GPU check one after the other; whatever one of them meets, the next one begins."""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from tests.gpu_check.machine import ROOT
from tests.gpu_check.parts import Part

PART_S = 3600.0
"""Longest time of a part."""
LAST_WORDS = 400


class Outcome(StrEnum):
    REACHED = "reached"
    MISSED = "missed"
    """A figure is not what is wanted, or is absent."""
    FAILED = "failed"
    """It did not come to its end."""
    CANNOT = "cannot run here"
    WOULD = "would run"
    RAN = "ran in the short form"
    """Its figures are there; they mean nothing, so they are compared with nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure of a part."""

    name: str
    value: float | None
    wanted: str = ""
    reached: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    part: Part
    outcome: Outcome
    command: str
    reason: str = ""
    seconds: float = 0.0
    figures: tuple[Judged, ...] = ()
    log: str = ""

    def told(self) -> dict[str, object]:
        return {
            "part": self.part.name, "does": self.part.does, "outcome": self.outcome.value, "command": self.command,
            "reason": self.reason, "seconds": round(self.seconds, 1),
            "figures": [asdict(one) for one in self.figures], "log": self.log,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Runner:
    folder: Path
    """Where reports and logs of the parts go."""
    device: str
    quick: bool
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, part: Part, model: Path | None) -> list[str]:
        return [sys.executable, *part.arguments(self.device, model, self._json(part), self.quick)]

    def run(self, part: Part, model: Path | None) -> Result:
        """Run a part to its end. Its output goes to a file of its own."""
        command, log = self.command(part, model), self.folder / f"{part.name}.log"
        self._json(part).unlink(missing_ok=True)
        began = time.monotonic()
        with log.open("wb") as out:
            try:
                code = subprocess.run(
                    command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT, check=False,
                    env={**os.environ, **self.environment}, timeout=PART_S,
                ).returncode  # fmt: skip
                reason = f"exit code {code}: {_last_words(log)}" if code else ""
            except subprocess.TimeoutExpired:
                code, reason = 1, f"no end within {PART_S:.0f} s"
        seconds = time.monotonic() - began
        told = {"command": " ".join(command), "seconds": seconds, "log": log.name}
        found = _of_tests(self._json(part).with_suffix(".xml")) if part.only_gpu else self._figures(part)
        figures = judged(part, found, self.quick)
        if code and not (part.only_gpu and found):
            return Result(part, Outcome.FAILED, reason=reason, figures=figures, **told)  # type: ignore[arg-type]
        if not all(one.reached for one in figures):
            return Result(part, Outcome.MISSED, figures=figures, **told)  # type: ignore[arg-type]
        outcome = Outcome.RAN if self.quick else Outcome.REACHED
        return Result(part, outcome, figures=figures, **told)  # type: ignore[arg-type]

    def _json(self, part: Part) -> Path:
        return self.folder / f"{part.name}.json"

    def _figures(self, part: Part) -> dict[str, float]:
        path = self._json(part)
        if not path.exists():
            return {}
        found: dict[str, float] = msgspec.json.decode(path.read_bytes())["figures"]
        return found


def judged(part: Part, found: Mapping[str, float] | None, quick: bool) -> tuple[Judged, ...]:
    """Return the figures of a part that are wanted, then those that it tells; without values where none were made."""
    if found is None:
        return tuple(Judged(bound.figure, None, bound.wanted) for bound in part.bounds)
    wanted = []
    for bound in part.bounds:
        value = found.get(bound.figure)
        reached = value is not None and (quick or bound.reached(value))
        wanted.append(Judged(bound.figure, value, bound.wanted, reached))
    told = [Judged(name, value) for name, value in found.items() if name.startswith(part.tells)]
    return (*wanted, *told)


def _of_tests(report: Path) -> dict[str, float]:
    """Return how many tests passed, failed and were skipped."""
    if not report.exists():
        return {}
    (suite,) = ET.parse(report).getroot().iter("testsuite")
    ran, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return {"passed": float(ran - skipped - failed), "failed": float(failed), "skipped": float(skipped)}


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:LAST_WORDS] if lines else "it said nothing"
