"""No test is run twice; what is started again is named, counted and said, and so is every bound that grew."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import infrastructure
from tests.support.infrastructure import (
    GROWN,
    RETRIED,
    TRIES,
    BrowserDiedError,
    DatabaseNotSetUpError,
    PortTakenError,
    brought_up,
    summary,
)
from tests.support.machine import MOST_SLOW, grown

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def remarks(monkeypatch: pytest.MonkeyPatch) -> infrastructure.Remarks:
    own: infrastructure.Remarks = []
    monkeypatch.setattr(infrastructure, "REMARKS", own)
    return own


class Starting:
    """Fails with some errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.tried = list(errors), 0

    def __call__(self) -> str:
        self.tried += 1
        if self.errors:
            raise self.errors.pop(0)
        return "up"


def test_what_is_named_is_started_again_and_counted(remarks: infrastructure.Remarks) -> None:
    start = Starting(PortTakenError("port 1"), DatabaseNotSetUpError("initdb"))
    assert brought_up(start, PortTakenError, DatabaseNotSetUpError, pause_s=0) == "up"
    assert start.tried == 3
    assert [heading for heading, _ in remarks] == [RETRIED, RETRIED]
    assert summary(remarks)[0] == f"{RETRIED}: 2"
    assert "PortTakenError: port 1" in summary(remarks)[1]


@pytest.mark.parametrize("error", [AssertionError("a promise"), TimeoutError("too late"), BrowserDiedError("another")])
def test_whatever_else_goes_wrong_is_the_answer(remarks: infrastructure.Remarks, error: Exception) -> None:
    start = Starting(error)
    with pytest.raises(type(error)):
        brought_up(start, PortTakenError, pause_s=0)
    assert (start.tried, remarks) == (1, [])


def test_what_never_comes_up_is_told_in_the_end(remarks: infrastructure.Remarks) -> None:
    start = Starting(*[PortTakenError("taken") for _ in range(9)])
    with pytest.raises(PortTakenError):
        brought_up(start, PortTakenError, pause_s=0)
    assert (start.tried, len(remarks)) == (TRIES, TRIES - 1)


def test_a_bound_that_grows_says_so_and_grows_so_far_only(remarks: infrastructure.Remarks) -> None:
    assert grown(0.7, MOST_SLOW) == 1.0
    assert remarks == []
    assert grown(2.0, MOST_SLOW) == 2.0
    assert grown(50.0, MOST_SLOW) == MOST_SLOW
    assert [heading for heading, _ in remarks] == [GROWN, GROWN]
    assert "2.0 times" in remarks[0][1]
    assert "50.0 times" in remarks[1][1]


FAILS_AT_FIRST = """
import pathlib, pytest
from tests.support.infrastructure import GROWN, remark

@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize("error", [AssertionError, TimeoutError])
def test_a_promise_that_is_broken_now_and_then(error):
    runs = pathlib.Path(__file__).with_name(error.__name__)
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    remark(GROWN, "2.0 times")
    if len(runs.read_text()) == 1:
        raise error
"""


def test_a_test_that_failed_is_not_run_again(tmp_path: Path) -> None:
    """Neither for what it is marked as, nor for how it failed; and the summary says which bounds grew."""
    (tmp_path / "test_flaky.py").write_text(FAILS_AT_FIRST)
    options = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "pytest.ini"]
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  services\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_flaky.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "2 failed" in done.stdout, done.stdout + done.stderr
    assert "rerun" not in done.stdout
    assert [(tmp_path / name).read_text() for name in ("AssertionError", "TimeoutError")] == ["x", "x"]
    assert f"{GROWN}: 2" in done.stdout


def test_the_script_runs_pytest_once() -> None:
    script = (ROOT / "scripts" / "test").read_text()
    assert script.count("-m pytest") == 1
    assert "--last-failed" not in script
