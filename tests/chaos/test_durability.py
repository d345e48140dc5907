"""A trainer dies while versions are committed and not yet restorable: the steps behind are redone, none counts twice.

Runs of one ordered specification end in the same bits, so whatever is redone must be what was done.
"""

import os
import signal
from collections.abc import Callable

import psycopg
import pytest

from tests.chaos.test_random_kills import SPEC, assert_nothing_lost_or_repeated
from tests.support.bits import bits_of
from tests.support.chaos import Store
from tests.support.forms import form
from tests.support.system import System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(900)]

STEPS = form(short=7, full=12)
STRUCK_AT = form(short=(3,), full=(3, 7, 10))
"""Steps behind which the trainer is killed: never one whose training state is on disk."""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def run_of(system: System, name: str, durability: object) -> dict:
    api = system.api()
    spec = {
        **SPEC,
        "seed": 12,
        "budget": {"train_steps": STEPS, "target": None},
        "mechanisms": {"ordered": True, "durability": durability},
    }
    run = api.create_run(name=name, spec=spec)
    store = Store(system, run["no"])
    for at in () if name == "undisturbed" else STRUCK_AT:
        api.wait(run["id"], lambda run, at=at: run["step"] >= at, 300)
        os.kill(store.children()["trainer"][0], signal.SIGKILL)
    store.close()
    return api.finish(run["id"], 300)


def test_steps_behind_the_last_durable_version_are_redone_and_count_once(system: System) -> None:
    api, ended = system.api(), {}
    policies: dict[str, object] = {
        "undisturbed": "every_step",
        "five": {"type": "every_k", "every": 5},
        "beside": "async",
    }
    for name, durability in policies.items():
        run = run_of(system, name, durability)
        assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
        assert_nothing_lost_or_repeated(system, api, run)
        ended[name] = bits_of(system.database_url, run["no"])
        with psycopg.connect(system.database_url) as conn:
            lost = conn.execute(
                "SELECT count(*) FROM store.event WHERE run_id = %s AND kind = 'child_lost'", [run["no"]]
            ).fetchone()
        assert lost is not None
        assert lost[0] >= (0 if name == "undisturbed" else len(STRUCK_AT))
    first = ended["undisturbed"]
    assert all(first.states.values()), "every version of the first is durable"
    for name in ("five", "beside"):
        assert ended[name].weights == first.weights, name
        assert ended[name].samples == first.samples, name
        marks = {version for (_, version), state in ended[name].states.items() if state}
        assert marks < {version for _, version in first.states}, f"{name}: not every version is durable"
    assert set(range(0, STEPS, 5)) <= {version for (_, version), state in ended["five"].states.items() if state}
