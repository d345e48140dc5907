"""The scripts of the pages that touch no page: their tests are JavaScript and run on the Node.js inside Playwright."""

import subprocess
from pathlib import Path

import playwright

TESTS = Path(__file__).parent / "scripts"
NODE = Path(playwright.__file__).parent / "driver" / "node"
"""Playwright's own, present wherever the test dependencies are: no Node.js of the machine is asked for."""


def test_scripts_pass_their_tests() -> None:
    files = sorted(map(str, TESTS.glob("*.test.mjs")))
    assert files
    command = [str(NODE), "--test", "--test-reporter=spec", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "fail 0" in done.stdout
