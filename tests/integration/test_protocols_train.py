"""Every trainer protocol and every publication trains the reference game through the real services.

Each run is held to the store's own promises: none trained twice, none above its bound, groups complete, counts add up;
and its four events per policy are in the log, each with its owner.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads import transitions
from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted
from tests.support.forms import form
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = form(short=4, full=6)
MICRO_BATCHES = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "micro_batch": {},
    "batch": {"trainer_protocol": "batch"},
    "per_group": {"trainer_protocol": "per_group"},
    "mini_batch": {"trainer_protocol": "mini_batch", "lag_policy": {"bound": 1}},
    "wavefront": {"publication": "wavefront"},
    "wavefront_batch": {"publication": "wavefront", "trainer_protocol": "batch"},
    "delayed": {"publication": "delayed", "lag_policy": {"bound": 1}},
    "policy_clock": {"policy_clock": True},
    "by_episode": {},
}


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


TRIED = form(short=["mini_batch", "wavefront_batch", "by_episode"], full=list(OPTIONS))
"""The short form leaves out what other runs of these tests do, and parts of what it tries."""


def spec(option: str) -> dict[str, Any]:
    batch = {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4}
    if option == "mini_batch":
        batch["mini_batches"] = 2
    if option == "policy_clock":
        batch["min_rows"] = 40
    if option == "by_episode":
        batch["settle"] = "episode"
    advantage = "reinforce" if option == "by_episode" else "grpo"
    return {
        "batch": batch,
        "algorithm": {"advantage": {"type": advantage}},
        "mechanisms": OPTIONS[option],
        "policies": {role: {"model": {"size": "S"}} for role in ("speaker", "listener")},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 3, "tasks": 8},
        "checkpoints": {"every_steps": 100},
    }


def test_each_protocol_and_publication_trains(system: System) -> None:
    api = system.api()
    runs = {option: api.create_run(name=option, template="reference_game", spec=spec(option))["id"] for option in TRIED}
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        for option, run_id in runs.items():
            run = api.finish(run_id, 300)
            assert run["status"] == "completed", f"{option}: {run['reason_text']}"
            wrong = [check for check in consistency_report(conn, run["no"]) if not check.ok]
            assert not wrong, f"{option}: {wrong}"
            assert_accounted(conn, run["no"], complete=False)
            check_events(conn, run["no"], option)


def check_events(conn: psycopg.Connection, run_no: int, option: str) -> None:
    """The log holds all four events of each policy: as many as the protocol makes, in an order that makes sense."""
    found = transitions.page(conn, run_no, transitions.TransitionFilter(), transitions.TransitionPosition(), 10_000)
    counts = Counter((event.policy, event.kind) for event in found)
    per_cohort = {"per_group": 16, "policy_clock": 3}.get(option, MICRO_BATCHES)
    steps = STEPS * (2 if option == "mini_batch" else 1)
    for policy in ("speaker", "listener"):
        assert counts[policy, "step"] == steps, option
        if option != "policy_clock":
            assert counts[policy, "ready"] == counts[policy, "backward"] == STEPS * per_cohort, option
        assert counts[policy, "publish"] >= 2, option
    lives = {kind: {event.owner for event in found if event.kind == kind} for kind in ("backward", "step", "publish")}
    assert lives["backward"] == lives["step"]
    assert lives["step"].isdisjoint(lives["publish"])
    first_step = min(event.at for event in found if event.kind == "step")
    assert min(event.at for event in found if event.kind == "ready") < first_step
