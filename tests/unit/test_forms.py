"""Tests of the marker `full` are left out unless the full form is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forms

ROOT = Path(__file__).resolve().parents[2]
FILE = "tests/integration/test_launcher_supervisor.py"


def test_a_form_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    for full in (False, True):
        monkeypatch.setattr(forms, "FULL", full)
        chosen.append(forms.form(full=9, short=1))
    assert chosen == [1, 9]


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "cases"), [("", 1), ("1", 2)])
def test_what_only_the_full_form_has_is_left_out_of_the_short_one(asked: str, cases: int) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        FILE,
        "--collect-only",
        "-q",
        "-k",
        "slow_process",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "FLEXMARL_FULL_TESTS": asked}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert found.count("test_a_slow_process_is_left_alone[") == cases, found
