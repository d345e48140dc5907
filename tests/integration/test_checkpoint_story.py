"""Checkpoints through the real services: kept by rules and pins, downloaded, loaded elsewhere, forked, read in again.

The trainer is killed while it writes one and while a fork binds its first version: nothing half is ever seen.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import torch

from flexmarl.launcher.processes import wait_until
from flexmarl.store.reads.report import consistency_report
from tests.chaos.test_kill_points import TRIGGERS, halted
from tests.support.counting import assert_accounted
from tests.support.machine import wait_for
from tests.support.system import Api, ApiError, System
from workers.training.folders import Inspector
from workers.transfer import LocalTier

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]

PATHS = re.compile(r"(?<![\w.:])/(?:home|root|tmp|usr|var|opt|etc|work)/[\w.-]+")
"""Absolute paths of a server's file system, as they would stand in an answer."""
ROLES = ("guesser", "hinter")
STEPS = 8
SPEC: dict[str, Any] = {
    "budget": {"train_steps": STEPS, "target": None},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    "evaluation": {"every_steps": 4, "tasks": 8},
    "checkpoints": {"every_steps": 2, "keep_last": 1, "keep_best": 0, "keep_every": 4},
}

WRITTEN, STRUCK = 40, 3
"""Checkpoints of the run whose trainer is killed while it writes one, and how often it is."""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def parent(system: System) -> dict[str, Any]:
    """A run of adapters that has ended, with its checkpoint after step 2 pinned on the way."""
    api = system.api()
    run_id = api.create_run(name="parent", template="hot_cold_adapters", spec=SPEC)["id"]
    assert wait_until(lambda: any(row["step"] == 2 for row in listed(api, run_id)), 300)
    assert api.post(f"/runs/{run_id}/checkpoints/2/actions/pin")["pinned"]
    run = api.finish(run_id, 400)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    return run


def listed(api: Api, run_id: str) -> list[dict[str, Any]]:
    return api.get(f"/runs/{run_id}/checkpoints")["results"]


def states(api: Api, run_id: str) -> dict[int, str]:
    return {row["step"]: row["state"] for row in listed(api, run_id)}


def versions(system: System, run_no: int, version: int) -> dict[str, tuple[str, str]]:
    """Policy -> digests of weights and training state of a version."""
    with psycopg.connect(system.database_url) as conn:
        rows = conn.execute(
            "SELECT policy, digest, state FROM store.policy_version WHERE run_id = %s AND version = %s",
            [run_no, version],
        ).fetchall()
    return {policy: (digest, state) for policy, digest, state in rows}


def download(api: Api, run_id: str, step: int, query: str, target: Path) -> Path:
    return api.download(f"/runs/{run_id}/checkpoints/{step}/archive?{query}", target)


def test_rules_and_pins_keep_and_the_rest_leaves_the_disk(system: System, parent: dict[str, Any]) -> None:
    api = system.api()
    expected = {2: "whole", 4: "whole", 6: "removed", 8: "whole"}
    assert wait_until(lambda: states(api, parent["id"]) == expected, 60), states(api, parent["id"])
    rows = {row["step"]: row for row in listed(api, parent["id"])}
    assert [rows[step]["kept_by"] for step in (2, 4, 6, 8)] == [[], ["every"], [], ["last", "every"]]
    root = system.home / "checkpoints" / f"run-{parent['no']}"
    assert sorted(path.name for path in root.iterdir()) == ["step-2", "step-4", "step-8"]
    assert rows[6]["size_bytes"] == 0
    api.post(f"/runs/{parent['id']}/checkpoints/2/actions/unpin")
    assert wait_until(lambda: states(api, parent["id"])[2] == "removed", 60)


def test_a_download_is_loaded_by_transformers_and_read_in_again_bit_for_bit(
    system: System, parent: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    api = system.api()
    adapters = download(api, parent["id"], 4, "form=adapter", tmp_path / "adapter")
    whole = download(api, parent["id"], 4, "form=merged&policy=guesser", tmp_path / "merged")
    assert sorted(path.name for path in adapters.iterdir()) == ["base-0", *ROLES]
    assert [path.name for path in whole.iterdir()] == ["guesser"]
    here = Path.cwd()
    os.chdir(adapters)  # an adapter names its base by its place in the archive
    try:
        adapted = AutoModelForCausalLM.from_pretrained("guesser")
    finally:
        os.chdir(here)
    merged = AutoModelForCausalLM.from_pretrained(whole / "guesser")
    words = torch.arange(3, 19).reshape(1, -1)
    assert torch.allclose(adapted(words).logits, merged(words).logits, atol=1e-5)
    base = AutoModelForCausalLM.from_pretrained(adapters / "base-0")
    assert not torch.allclose(base(words).logits, merged(words).logits, atol=1e-5), "the adapter changes something"
    tuning = {"type": "lora", **{k: parent["spec"]["policies"]["guesser"]["tuning"][k] for k in ("rank", "alpha")}}
    policies = {
        role: {
            "model": {"type": "folder", "path": str(adapters / "base-0")},
            "tuning": {**tuning, "adapter": str(adapters / role)},
        }
        for role in ROLES
    }
    spec = {**SPEC, "budget": {"train_steps": 1, "target": None}, "policies": policies}
    run = api.finish(api.create_run(name="read in", template="hot_cold_adapters", spec=spec)["id"], 300)
    assert run["status"] == "completed", run["reason_text"]
    plane = LocalTier(system.home)
    was, now = (versions(system, one["no"], version) for one, version in ((parent, 4), (run, 0)))
    for role in ROLES:
        old, new = plane.get(was[role][0]), plane.get(now[role][0])
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) for name in old), role


def test_a_fork_begins_with_the_same_content_and_goes_on_with_the_optimizer(
    system: System, parent: dict[str, Any]
) -> None:
    api = system.api()
    body = {"checkpoint": 4, "take": "training_state", "name": "fork", "start": True}
    made = api.post(f"/runs/{parent['id']}/actions/fork", {**body, "overrides": {"budget": {"train_steps": 2}}})
    fresh = api.post(f"/runs/{parent['id']}/actions/fork", {**body, "take": "weights", "checkpoint": "newest"})
    ends = [api.finish(made["id"], 300), api.finish(fresh["id"], 400)]
    for run in ends:
        assert run["status"] == "completed", run["reason_text"]
    at_4, at_8 = (versions(system, parent["no"], version) for version in (4, STEPS))
    first = versions(system, made["no"], 0)
    assert first == at_4, "equal weights and equal training state are equal contents"
    other = versions(system, fresh["no"], 0)
    assert {role: weights for role, (weights, _) in other.items()} == {r: weights for r, (weights, _) in at_8.items()}
    assert all(other[role][1] != at_8[role][1] for role in ROLES), "its optimizer is fresh"
    told = api.get(f"/runs/{made['id']}/lineage")["origins"]
    assert {(one["policy"], one["version"], one["run"]["key"]) for one in told} == {
        (role, 4, parent["key"]) for role in ROLES
    }
    assert len(api.get(f"/runs/{parent['id']}/lineage")["copies"]) == 4
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        for run in ends:
            assert not [check for check in consistency_report(conn, run["no"]) if not check.ok]
            assert_accounted(conn, run["no"])


def test_other_words_are_refused_when_the_fork_is_bound(system: System, parent: dict[str, Any]) -> None:
    api = system.api()
    overrides = {"policies": {"guesser": {"tuning": {"rank": 3}}}}
    with pytest.raises(ApiError) as refused:
        api.post(f"/runs/{parent['id']}/actions/fork", {"checkpoint": 4, "overrides": overrides})
    assert refused.value.problem["errors"][0]["pointer"] == "/policies/guesser/tuning/rank"


def test_a_wrong_adapter_folder_ends_the_run_with_the_field_and_a_legal_value(
    system: System, parent: dict[str, Any], tmp_path: Path
) -> None:
    api = system.api()
    folder = download(api, parent["id"], 4, "form=adapter", tmp_path / "adapter")
    policies = {
        "guesser": {
            "model": {"type": "folder", "path": str(folder / "base-0")},
            "tuning": {"type": "lora", "rank": 3, "adapter": str(folder / "guesser")},
        }
    }
    run = api.create_run(name="wrong", template="hot_cold_adapters", spec={**SPEC, "policies": policies})
    ended = api.finish(run["id"], 300)
    assert ended["status"] == "failed"
    rank = parent["spec"]["policies"]["guesser"]["tuning"]["rank"]
    assert f"policies.guesser.tuning: rank: is 3, the adapter has {rank}; set {rank}" in ended["reason_text"]
    assert str(tmp_path) not in ended["reason_text"]


def test_the_home_s_own_checkpoints_are_no_folder_and_a_source_of_their_own(
    system: System, parent: dict[str, Any]
) -> None:
    api = system.api()
    folder = system.home / "checkpoints" / f"run-{parent['no']}" / "step-4"
    with pytest.raises(ApiError) as refused:
        api.create_run(
            name="taken", template="hot_cold_adapters",
            spec={"policies": {"guesser": {"model": {"type": "folder", "path": str(folder / "base-0")}}}},
        )  # fmt: skip
    assert refused.value.problem["errors"][0]["code"] == "folder_not_allowed"
    model = {"type": "checkpoint", "run": parent["key"], "step": 4}
    policies = {role: {**parent["spec"]["policies"][role], "model": model} for role in ROLES}
    spec = {**SPEC, "budget": {"train_steps": 1, "target": None}, "policies": policies}
    run = api.finish(api.create_run(name="taken", template="hot_cold_adapters", spec=spec)["id"], 300)
    assert run["status"] == "completed", run["reason_text"]
    was, now = versions(system, parent["no"], 4), versions(system, run["no"], 0)
    assert {role: weights for role, (weights, _) in now.items()} == {
        role: weights for role, (weights, _) in was.items()
    }
    told = api.get(f"/runs/{run['id']}/lineage")["origins"]
    assert {(one["policy"], one["run"]["key"], one["step"]) for one in told} == {(r, parent["key"], 4) for r in ROLES}


def test_no_answer_about_the_run_names_a_folder_of_the_server(system: System, parent: dict[str, Any]) -> None:
    api = system.api()
    run = f"/runs/{parent['id']}"
    for path in (
        run, f"{run}/checkpoints", f"{run}/checkpoints/4", f"{run}/lineage", f"{run}/logs?limit=1000",
        f"{run}/events?limit=1000&expand=body", f"{run}/attempts", f"{run}/operations",
    ):  # fmt: skip
        text = json.dumps(api.get(path))
        assert str(system.home) not in text, path
        assert PATHS.search(text) is None, (path, PATHS.search(text))


def trainer(conn: psycopg.Connection, run_no: int, former: int = 0) -> int:
    """Return the process of a run's trainer, once it is another one than a former."""
    query = (
        "SELECT pid FROM store.lease WHERE run_id = %s AND use = 'trainer' AND state = 'held' AND incarnation <> '' "
        "AND pid <> %s"
    )
    return int(wait_for(lambda: conn.execute(query, [run_no, former]).fetchone(), 120)[0])


def test_a_trainer_killed_while_a_fork_binds_leaves_no_version_behind(system: System, parent: dict[str, Any]) -> None:
    api = system.api()
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        conn.execute(TRIGGERS.encode())
        body = {"checkpoint": 4, "take": "training_state", "name": "struck", "start": False}
        overrides = {"overrides": {"budget": {"train_steps": 2}}}
        made = api.post(f"/runs/{parent['id']}/actions/fork", {**body, **overrides})
        # Started once the point is held: an answer that comes late would find the version made.
        with halted(conn, "policy_version:", lambda: api.act(made["id"], "start")):
            os.kill(trainer(conn, made["no"]), signal.SIGKILL)
            assert versions(system, made["no"], 0) == {}
        run = api.finish(made["id"], 400)
        conn.execute("DROP FUNCTION halt_at CASCADE")
    assert (run["status"], run["step"]) == ("completed", 2), run["reason_text"]
    assert versions(system, made["no"], 0) == versions(system, parent["no"], 4)


@pytest.mark.full
def test_a_trainer_killed_while_it_writes_leaves_nothing_half(system: System) -> None:
    api = system.api()
    checkpoints = {"every_steps": 1, "keep_last": 3}
    spec = {**SPEC, "budget": {"train_steps": WRITTEN, "target": None}, "checkpoints": checkpoints}
    made = api.create_run(name="writer", template="hot_cold_adapters", spec=spec)
    root = system.home / "checkpoints" / f"run-{made['no']}"
    inspector, struck, pid = Inspector(), 0, 0
    known: set[str] = set()
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        deadline = time.monotonic() + 400
        while (
            struck < STRUCK
            and time.monotonic() < deadline
            and api.run(made["id"])["status"] not in ("completed", "failed")
        ):
            # What a writer leaves behind lies there until the next one removes it, and the registry names a process
            # until its end was noticed: neither is one to strike.
            pid, until = trainer(conn, made["no"], pid), time.monotonic() + 20
            while time.monotonic() < until:
                begun = {name for name in (os.listdir(root) if root.is_dir() else ()) if "-new-" in name}
                if begun - known:
                    os.kill(pid, signal.SIGKILL)
                    struck, known = struck + 1, known | begun
                    break
                time.sleep(0.001)
            else:
                pid = 0
            for path in root.iterdir() if root.is_dir() else ():
                if not path.name.startswith("."):
                    damage = inspector.look(path)
                    assert damage is None or damage.state == "missing", damage
        assert struck >= 1
        run = api.finish(made["id"], 600)
        assert run["status"] == "completed", run["reason_text"]
        assert not [check for check in consistency_report(conn, made["no"]) if not check.ok]
        assert_accounted(conn, made["no"])
    last = {WRITTEN - 2, WRITTEN - 1, WRITTEN}
    assert wait_until(lambda: {s for s, state in states(api, made["id"]).items() if state == "whole"} >= last, 60)
    whole = {step for step, state in states(api, made["id"]).items() if state == "whole"}
    assert all(inspector.look(root / f"step-{step}") is None for step in whole)
