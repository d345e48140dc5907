"""A run whose trainer shares the one device of its engine: it makes the steps of a run that has a device for each.

Through the real services with real engines and trainers; who had the device is read from what they recorded. Children
are killed while the device changes hands.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.ended import ended
from tests.support.promised import kept_its_promises
from tests.support.system import MANY_DEVICES, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

STEPS = 4
VERSIONS = "SELECT policy, version, digest FROM store.policy_version WHERE run_id = %(run)s ORDER BY 1, 2"
SPANS = """
SELECT i.device_id, l.use, i.phase, i.policy, i.t0, i.t1, i.bytes, i.incarnation FROM store.interval i
JOIN store.lease l ON l.id = i.lease_id WHERE i.run_id = %(run)s ORDER BY i.t0, i.t1
"""
TURNS = "SELECT cause FROM store.ruling WHERE run_id = %(run)s AND kind = 'devices_turned' ORDER BY seq, ord"
SLACK_S = 0.005
"""Two processes of one host read its clock."""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


def spec(allocation: str, steps: int = STEPS) -> dict[str, Any]:
    return {
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
        "mechanisms": {"allocation": allocation, "ordered": True},
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 2, "tasks": 4},
        "checkpoints": {"every_steps": 2},
    }


def asked(system: System, query: str, run_no: int) -> list[tuple[Any, ...]]:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        return conn.execute(query, {"run": run_no}).fetchall()


def held(spans: list[tuple[Any, ...]], use: str) -> list[tuple[float, float]]:
    """Return from when to when an engine or a trainer had something on the device, by what each life of it recorded."""
    took, gave = ({"load"}, "sleep") if use == "engine" else ({"bind", "resume"}, "suspend")
    found: list[tuple[float, float]] = []
    for life in dict.fromkeys(row[7] for row in spans if row[1] == use):
        there: dict[str, float] = {}
        last = 0.0
        for _, _, phase, policy, began, end, _, of in spans:
            if of != life:
                continue
            last = end
            if phase in took:
                there.setdefault(policy if use == "trainer" else "", began)
            elif phase == gave and (since := there.pop(policy if use == "trainer" else "", None)) is not None:
                found.append((since, end))
        found += [(since, last) for since in there.values()]
    return found


def never_both(system: System, run_no: int) -> list[tuple[Any, ...]]:
    spans = asked(system, SPANS, run_no)
    assert len({row[0] for row in spans}) == 1, "one device"
    engine, trainer = held(spans, "engine"), held(spans, "trainer")
    assert engine
    assert trainer
    both = [(a, b) for a in engine for b in trainer if min(a[1], b[1]) - max(a[0], b[0]) > SLACK_S]
    assert not both, f"engine and trainer both had the device: {both}"
    return spans


def child_in(system: System, run_no: int, use: str, kind: str) -> int:
    """Wait until a command of a kind is under way that was not before; returns the process of its engine or trainer."""
    query = f"""
    SELECT l.pid FROM store.lease l WHERE l.run_id = %(run)s AND l.use = '{use}' AND l.incarnation <> '' AND EXISTS (
      SELECT 1 FROM store.command c WHERE c.run_id = l.run_id AND c.kind = '{kind}' AND c.status IN ('open', 'taken'))
    """
    until = time.monotonic() + 300
    while not (found := asked(system, query, run_no)):
        assert time.monotonic() < until, f"no {kind}"
        time.sleep(0.002)
    return int(found[0][0])


def killed_in_turns(system: System, run_no: int) -> None:
    for use, kind in (("engine", "sleep_engine"), ("trainer", "suspend_policy"), ("engine", "wake_engine")):
        pid = child_in(system, run_no, use, kind)
        os.kill(pid, signal.SIGKILL)
        while not ended(pid):
            time.sleep(0.05)


def turned_in_order(system: System, run_no: int) -> int:
    """Return how often trainers got the device."""
    causes = [cause for (cause,) in asked(system, TURNS, run_no)]
    assert causes == [("to_engines", "to_trainers")[place % 2] for place in range(len(causes))]
    return causes.count("to_trainers")


def test_one_device_makes_the_steps_of_two_whoever_is_killed_while_it_changes_hands(system: System) -> None:
    api = system.api()
    names = {"two": "static", "one": "colocated", "killed": "colocated"}
    runs = {name: api.create_run(name=name, template="reference_game", spec=spec(kind)) for name, kind in names.items()}
    killed_in_turns(system, runs["killed"]["no"])
    ends = {name: api.finish(run["id"], 500) for name, run in runs.items()}
    made = {}
    for name, run in ends.items():
        assert run["status"] == "completed", run["reason_text"]
        kept_its_promises(system, run["no"])
        made[name] = asked(system, VERSIONS, run["no"])
    assert {name: run["devices"] for name, run in ends.items()} == {"two": 2, "one": 1, "killed": 1}
    assert len(made["two"]) == 2 * (STEPS + 1)
    assert made["one"] == made["two"], "weights of every version, bit for bit"
    assert made["killed"] == made["two"], "what was lost was redone"
    never_both(system, ends["killed"]["no"])
    turned_in_order(system, ends["killed"]["no"])

    spans = never_both(system, ends["one"]["no"])
    assert STEPS <= turned_in_order(system, ends["one"]["no"]) <= STEPS + 2
    moved = {phase: [row[6] for row in spans if row[2] == phase] for phase in ("sleep", "suspend", "resume")}
    assert all(moved.values())
    assert min(moved["suspend"]) > 100_000
    assert max(moved["sleep"]) > 100_000
    swaps = api.get(f"/runs/{runs['one']['id']}/swaps?limit=100")["results"]
    assert {"sleep", "wake", "suspend", "resume"} <= {swap["phase"] for swap in swaps}
