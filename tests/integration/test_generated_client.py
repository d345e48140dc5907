"""A client that a generator made of the OpenAPI document alone creates a run and follows it to its end.

The generator has an environment of its own: what it pins meets what this project pins.
"""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.system import System

pytestmark = [pytest.mark.full, pytest.mark.external, pytest.mark.services, pytest.mark.slow]
GENERATOR = "openapi-python-client==0.29.1"
STEPS = 3
SCRIPT = textwrap.dedent(
    """
    import sys, time
    from generated import AuthenticatedClient
    from generated.api.runs import runs_act, runs_create, runs_plan, runs_read, runs_series_data
    from generated.models import (
        ActionRequest, NewRunRequest, PartialExperimentSpec, PartialSpecBudget, PlanRequestRequest, RunDetail
    )

    url, token, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    client = AuthenticatedClient(url, token)
    batch = {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4}
    overrides = {"batch": batch, "evaluation": {"tasks": 8}, "budget": {"train_steps": steps, "target": None}}
    asked = {"template": "reference_game", "overrides": overrides}
    plan = runs_plan.sync(client=client, body=PlanRequestRequest.from_dict(asked))
    assert plan.errors == [] and plan.spec.budget.train_steps == steps, plan
    body = NewRunRequest.from_dict({**asked, "name": "generated", "start": True})
    assert isinstance(body.overrides, PartialExperimentSpec) and isinstance(body.overrides.budget, PartialSpecBudget)
    run = runs_create.sync(client=client, body=body, idempotency_key="once")
    assert isinstance(run, RunDetail), run
    assert runs_create.sync(client=client, body=body, idempotency_key="once").id == run.id
    until = time.monotonic() + 240
    while run.status not in ("completed", "failed", "killed", "cancelled") and time.monotonic() < until:
        time.sleep(0.5)
        run = runs_read.sync(run.key, client=client)
    refused = runs_act.sync(run.key, "start", client=client, body=ActionRequest(), idempotency_key="again")
    points = runs_series_data.sync(run.key, client=client, names="reward/team")
    print(run.status.value, run.step, run.spec.seed, refused.code, len(points.series) > 0)
    """
)


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of an environment with the generator; skips where no package index answers."""
    folder = tmp_path_factory.mktemp("generator")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    install = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q", GENERATOR]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"{GENERATOR} cannot be installed here: {done.stderr[-200:]}")
    return folder / "bin"


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def test_a_generated_client_creates_and_follows_a_run(generator: Path, system: System, tmp_path: Path) -> None:
    api, made, document = system.api(), tmp_path / "generated", tmp_path / "openapi.json"
    (tmp_path / "follow.py").write_text(SCRIPT)
    with urlopen(f"{system.url}/api/v1/openapi.json", timeout=120) as answer:
        document.write_bytes(answer.read())  # the generator itself waits five seconds, less than a busy host takes
    generate = [generator / "openapi-python-client", "generate", "--path", document]
    done = subprocess.run(
        [*generate, "--meta", "none", "--output-path", made], capture_output=True, text=True, check=True, timeout=300
    )
    assert "Unable to parse schema" not in done.stdout + done.stderr
    left_out = [line for line in (done.stdout + done.stderr).splitlines() if "Endpoint will not be generated" in line]
    assert [line.split(" ")[2:4] for line in left_out] == [["POST", "/api/v1/runs/{run_id}/series:batch"]]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    followed = subprocess.run(
        [generator / "python", tmp_path / "follow.py", system.url, api.token, str(STEPS)],
        capture_output=True, text=True, check=False, env=environment, timeout=400,
    )  # fmt: skip
    assert followed.returncode == 0, followed.stderr[-3000:]
    assert followed.stdout.split() == ["completed", str(STEPS), "0", "invalid_state", "True"]
