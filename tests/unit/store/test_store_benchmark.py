"""The store's benchmark says how to install its other side when it is not there, before it starts anything."""

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "store.py"


def test_without_transferqueue_it_is_refused_with_the_way_to_install_it():
    for python in (sys.executable, "/no/such/python"):
        done = subprocess.run(
            [sys.executable, str(BENCHMARK), "--quick", "--transferqueue", python],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 1
        assert f"{python} cannot run TransferQueue" in done.stderr
        assert "requirements-store.txt" in done.stderr
