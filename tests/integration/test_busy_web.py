"""A web process under more load than its core can take, beside a training run: slow, never replaced, no 5xx."""

from collections.abc import Iterator

import pytest

from flexmarl.controlplane.telemetry.health.probes import ANSWER_S
from tests.support.busy_web import UNLIMITED, hung, strain
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full]
SECONDS = 20.0
"""Longer still: tests/benchmarks/web_liveness.py --seconds 300."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("busy") / "home", environment=UNLIMITED) as system:
        yield system


def test_load_slows_the_web_process_and_ends_nothing(running: System) -> None:
    endless = {"budget": {"train_steps": 1_000_000, "target": None}}
    run = running.api().create_run(name="beside", template="reference_game", spec=endless)
    running.api().wait(run["id"], lambda found: found["step"] > 0, 180)
    seen = strain(running, run, sockets=200, per_s=100, seconds=SECONDS)
    # Here other processes hold the cores as well, so answers may be late. The benchmark measures them.
    print(
        seen.statuses, {path: max(took for took, _ in probes) for path, probes in seen.probes.items()}, seen.recovered_s
    )
    assert seen.replaced == []
    assert hung(running) == []
    assert {status for _, status in seen.probes["/healthz"]} <= {0, 200}, seen.probes
    early = [(took, status) for took, status in seen.probes["/readyz"] if took < ANSWER_S and status]
    assert {status for _, status in early} <= {200}, f"only a look that did not end in time is not ready: {early}"
    assert seen.statuses[200] > 0
    assert [status for status in seen.statuses if status >= 500] == [], seen.statuses
    assert seen.steps > 0, "training went on"
