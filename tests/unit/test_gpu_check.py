"""The GPU check: it lists every part, runs on whatever some of them meet, and its exit code says what came of them."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_check import report
from tests.gpu_check.machine import Machine, hindrance
from tests.gpu_check.parts import PARTS, Bound, Model, Part
from tests.gpu_check.running import Outcome, Result, Runner

ROOT = Path(__file__).resolve().parents[2]
WRITES = (
    "import json, sys; open(sys.argv[sys.argv.index('--json') + 1], 'w').write(json.dumps({'figures': {'speed': %s}}))"
)
BOUND = Bound("speed", least=0.95)
NONE = Machine((), "2", "", "", "", 2, "Linux", "")
FULL = Machine(("A GPU", "A GPU"), "2", "13", "/python", "", 2, "Linux", "")


def part(name: str, code: str, **more: object) -> Part:
    return Part(name, "is tried", ("-c", code), (BOUND,), **more)  # type: ignore[arg-type]


def test_a_part_that_fails_or_misses_does_not_stop_the_others(tmp_path: Path) -> None:
    runner = Runner(tmp_path, "cpu", quick=False)
    failing = part("failing", "import sys; print('the last words'); sys.exit(3)")
    parts = [failing, part("slow", WRITES % 0.5), part("silent", ""), part("fast", WRITES % 0.95)]
    results = [runner.run(one, None) for one in parts]
    assert [one.outcome for one in results] == [Outcome.FAILED, Outcome.MISSED, Outcome.MISSED, Outcome.REACHED]
    assert results[0].reason == "exit code 3: the last words"
    assert [one.figures[0].value for one in results] == [None, 0.5, None, 0.95]
    assert report.exit_code(results) == 1
    assert report.exit_code(results[3:]) == 0
    for path in report.write(tmp_path, NONE, "cpu", results):
        text = path.read_text(encoding="utf-8")
        assert all(one.name in text and "0.95" in text for one in parts), path


def test_figures_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    runner = Runner(tmp_path, "cpu", quick=False)
    assert runner.run(part("one", WRITES % 1.0), None).outcome is Outcome.REACHED
    assert runner.run(part("one", ""), None).outcome is Outcome.MISSED


def test_nothing_that_could_run_is_no_success() -> None:
    cannot = [Result(one, Outcome.CANNOT, "") for one in PARTS]
    assert report.exit_code(cannot) == 2
    assert report.exit_code([*cannot, Result(PARTS[0], Outcome.REACHED, "")]) == 0


@pytest.mark.parametrize("one", PARTS, ids=lambda one: one.name)
def test_a_part_says_all_that_it_lacks(one: Part) -> None:
    here = Path("/models/own")
    assert hindrance(one, FULL, "cuda", here, quick=False) == ""
    lacking = hindrance(one, NONE, "cuda", None, quick=False)
    assert "torch sees 0" in lacking
    assert ("FLEXMARL_VLLM_PYTHON" in lacking) == one.vllm
    assert ("--model" in lacking) == (one.model is Model.NAMED)
    assert (hindrance(one, NONE, "cpu", here, quick=True) == "") == (not one.only_gpu and not one.vllm)


def test_the_dry_run_lists_every_part_and_why_it_cannot_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_check", "--dry-run", "--out", str(tmp_path)],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}", "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"},
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads((tmp_path / "gpu-check.json").read_text(encoding="utf-8"))
    assert [one["part"] for one in found["parts"]] == [one.name for one in PARTS]
    for one, told in zip(PARTS, found["parts"], strict=True):
        assert told["outcome"] == Outcome.CANNOT.value
        assert "torch sees 0" in told["reason"]
        assert all(word in done.stdout for word in (one.does, told["reason"], told["command"]))
        assert [figure["wanted"] for figure in told["figures"]] == [bound.wanted for bound in one.bounds]
    assert not list(tmp_path.glob("*.log")), "nothing was run"


def test_every_command_is_of_a_file_that_is_there() -> None:
    for one in PARTS:
        assert one.only_gpu or (ROOT / one.command[0]).is_file(), one.name
        assert len({other.name for other in PARTS}) == len(PARTS)


def test_tests_that_need_a_gpu_are_marked_so() -> None:
    """Else the check would not run them."""
    found = 0
    for path in (ROOT / "tests").rglob("test_*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                marks = [ast.unparse(mark) for mark in function.decorator_list]
                if any("torch.cuda.is_available" in mark for mark in marks):
                    assert "pytest.mark.gpu" in marks, f"{path.name}: {function.name}"
                    found += 1
    assert found >= 3
