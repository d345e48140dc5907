"""The scripts of the pages that touch no page: their tests are JavaScript and run on the Node.js inside Playwright."""

import json
import os
import subprocess
from pathlib import Path

import playwright

from flexmarl.contracts.resolve import load_templates
from webui.forms.team_form import kinds_for_page, team_schema
from webui.forms.team_of_run import team_of

TESTS = Path(__file__).parent / "scripts"
NODE = Path(playwright.__file__).parent / "driver" / "node"
"""Playwright's own, present wherever the test dependencies are: no Node.js of the machine is asked for."""


def test_scripts_pass_their_tests() -> None:
    files = sorted(map(str, TESTS.glob("*.test.mjs")))
    assert files
    command = [str(NODE), "--test", "--test-reporter=spec", *files]
    teams = {name: team_of(one.spec) for name, one in load_templates().items()}
    given = json.dumps({"kinds": kinds_for_page(team_schema()), "teams": teams})
    environment = {**os.environ, "FLEXMARL_TEAMS": given}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "fail 0" in done.stdout
