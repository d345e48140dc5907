"""The parts of the GPU check really run, in their short form on the CPU: what they read is there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_check.parts import PARTS, Part
from tests.gpu_check.running import Outcome
from tests.support.engines import VLLM_PYTHON
from tests.support.forms import form

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
HERE = [one for one in PARTS if not one.only_gpu and not one.name.endswith("_named") and (VLLM_PYTHON or not one.vllm)]
CHOSEN = form(short=[one for one in HERE if one.name == "suspending"], full=HERE)
"""The short form runs one: that what a part says is read and told; each benchmark has tests of its own."""


@pytest.mark.parametrize("part", CHOSEN, ids=lambda part: part.name)
def test_a_part_runs_on_a_cpu_and_tells_its_figures(part: Part, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu_check", "--device", "cpu", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--only", part.name], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")])},
    )  # fmt: skip
    log = (tmp_path / f"{part.name}.log").read_text(encoding="utf-8")
    assert done.returncode == 0, f"{done.stdout}\n{log[-3000:]}"
    [told] = json.loads((tmp_path / "gpu-check.json").read_text(encoding="utf-8"))["parts"]
    assert told["outcome"] == Outcome.RAN.value
    values = {figure["name"]: figure["value"] for figure in told["figures"]}
    assert all(values[bound.figure] is not None for bound in part.bounds)
    assert all(any(name.startswith(begin) for name in values) for begin in part.tells), values
