"""Pools whose hosts are batch jobs: options, dry run, what Slurm's words become, and what the loop does with them.

Slurm is played by shell scripts here; `tests/integration/test_slurm_story.py` asks a real one.
"""

import json
import stat
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import host_jobs, nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from tests.support.played_slurm import PlayedSlurm, played_slurm
from tests.support.providing import jobs, rounds

pytestmark = pytest.mark.django_db

SLURM = {"type": "slurm", "partition": "train", "devices": 2, "max_nodes": 2}


@pytest.fixture
def slurm(tmp_path: Path, settings: Any) -> PlayedSlurm:
    return played_slurm(tmp_path, settings)


@pytest.fixture
def pool(admin_api: Any, slurm: PlayedSlurm) -> str:
    made = admin_api.post("/api/v1/pools", {"name": "batch", "provider": {**SLURM, "min_nodes": 1}}, format="json")
    assert made.status_code == 201, made.content
    return "batch"


def register(node: str, *devices: str) -> None:
    found = [DeviceFacts(f"{node}.{name}", "cpu", n, "CPU", 2**30, "batch") for n, name in enumerate(devices)]
    nodes.register_node(store_connection(), NodeFacts(node, "127.0.0.1:1", "a", "1"), found)


@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        ({"partition": "a b"}, "/provider/partition", "gpu"),
        ({"partitoin": "x"}, "/provider/partitoin", "partition"),
        ({"time_limit_minutes": 1}, "/provider/time_limit_minutes", "2"),
        ({"notice_s": 7200, "time_limit_minutes": 60}, "/provider/notice_s", "3599"),
        ({"min_nodes": 3}, "/provider/min_nodes", "max_nodes, which is 2"),
        ({"devices": 1}, "/provider/devices", "set 2"),
        ({"sbatch": ["--constraint=a100", "--signal=TERM@10"]}, "/provider/sbatch/1", "set notice_s instead"),
        ({"sbatch": ["--wrap=true\nrm -rf /"]}, "/provider/sbatch/0", "--constraint=a100"),
        ({"type": "pbs"}, "/provider/type", "'static', 'slurm'"),
        ({"access": "ssh"}, "/provider/access", "'node_token'"),
        ({"home": "/var/lib/flexmarl"}, "/provider/home", "set access to node_token"),
        ({"access": "node_token", "home": "lib"}, "/provider/home", "/var/lib/flexmarl"),
        ({"checkout": "flexmarl"}, "/provider/checkout", "/opt/flexmarl"),
    ],
)
def test_options_are_refused_with_field_rule_and_legal_value(
    admin_api: Any, changes: dict[str, Any], pointer: str, words: str
) -> None:
    answer = admin_api.post("/api/v1/pools", {"name": "batch", "provider": {**SLURM, **changes}}, format="json")
    assert answer.status_code == 400
    errors = answer.json()["errors"]
    assert [error["pointer"] for error in errors] == [pointer]
    assert words in f"{errors[0]['detail']} {errors[0]['hint']}"


def test_the_dry_run_shows_what_would_be_submitted_and_no_secret(
    admin_api: Any, pool: str, slurm: PlayedSlurm, settings: Any
) -> None:
    answer = admin_api.get("/api/v1/pools/batch/submission")
    assert answer.status_code == 200
    found = answer.json()
    assert found["command"] == "sbatch --parsable"
    assert found["settings_file"] == f"{settings.HOME}/host-settings.json"
    assert slurm.lines("calls") == []
    rounds(2)
    script = (slurm.folder / "last.sh").read_text()
    example = found["script"].replace(host_jobs.name_of(UUID(int=0)), jobs(admin_api)[0]["name"])
    assert script == example.replace(str(UUID(int=0)), jobs(admin_api)[0]["id"])
    assert "#SBATCH --partition=train\n" in script
    assert "#SBATCH --signal=B:USR1@300\n" in script
    kept = Path(found["settings_file"])
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    secrets = {json.loads(kept.read_text())[name] for name in ("DATABASE_URL", "FLEXMARL_CLUSTER_KEY")}
    shown = found["script"] + script + "".join(slurm.lines("last.env"))
    assert not [secret for secret in secrets if secret in shown]
    assert {line.partition("=")[0] for line in slurm.lines("last.env")} <= {
        "PATH",
        "SLURM_TIME_FORMAT",
        "PWD",
        "_",
        "SHLVL",
        "OLDPWD",
    }


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("Batch job submission failed: Invalid partition name specified", "Set partition"),
        ("Batch job submission failed: Invalid account or account/partition combination specified", "Set account"),
        ("Batch job submission failed: Invalid qos specification", "Set qos"),
        (
            "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or "
            "time limits)",
            "lower max_nodes",
        ),
        ("Batch job submission failed: Requested node configuration is not available", "Lower cpus"),
        (
            "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
            "Lower time_l",
        ),
        ("Batch job submission failed: Invalid generic resource (gres) specification", "Set kind and devices"),
    ],
)
def test_a_refusal_is_shown_in_slurms_words_with_the_next_step(
    admin_api: Any, pool: str, slurm: PlayedSlurm, words: str, step: str
) -> None:
    slurm.says("sbatch", f'echo "sbatch: error: {words}" >&2; echo x >> calls; exit 1')
    rounds(3)
    [job] = jobs(admin_api)
    assert (job["state"], job["reason"]) == ("refused", words)
    assert step in job["next_step"]
    assert len(slurm.lines("calls")) == 1, "it is not asked again at once"


def test_a_refused_job_is_submitted_as_soon_as_the_pool_says_otherwise(
    admin_api: Any, pool: str, slurm: PlayedSlurm
) -> None:
    slurm.says("sbatch", 'grep -q partition=good && { echo 7; exit 0; }; echo "sbatch: error: no such one" >&2; exit 1')
    rounds(2)
    assert jobs(admin_api)[0]["state"] == "refused"
    version = admin_api.get("/api/v1/pools/batch").json()["version"]
    changes = {"provider": {**SLURM, "min_nodes": 1, "partition": "good"}}
    answer = admin_api.patch("/api/v1/pools/batch", changes, format="json", headers={"If-Match": f'W/"{version}"'})
    assert answer.status_code == 200, answer.content
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], job["native"], job["reason"], job["next_step"]) == ("pending", "7", "", "")


def test_a_job_whose_number_was_never_noted_is_found_by_its_name(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    rounds()
    [job] = jobs(admin_api)
    assert job["state"] == "requested"
    slurm.job("41", job["name"], "PENDING", "Priority")
    slurm.job("42", job["name"], "RUNNING")
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], job["native"], job["reason"]) == ("pending", "41", "PENDING (Priority)")
    assert slurm.lines("calls") == [], "nothing is submitted for a name that has a job"
    assert set(slurm.lines("cancelled")) == {"42"}


def test_a_controller_that_does_not_answer_ends_nothing(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    slurm.job(job["native"], job["name"], "RUNNING")
    rounds()
    said = "Unable to contact slurm controller (connect failure)"
    slurm.says("squeue", f'echo "slurm_load_jobs error: {said}" >&2; exit 1')
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], job["ended_at"]) == ("running", None)
    assert said in job["reason"]


def test_an_unknown_answer_of_sbatch_is_no_refusal(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    said = "Batch job submission failed: Unable to contact slurm controller (connect failure)"
    slurm.says("sbatch", f'echo "sbatch: error: {said}" >&2; exit 1')
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], job["reason"]) == ("requested", said), "it may have been submitted: its name is looked for"


def test_a_job_that_ends_takes_its_node_and_leases_with_it(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    slurm.job(job["native"], job["name"], "RUNNING")
    rounds()
    register(job["node"], "cpu0", "cpu1")
    conn = store_connection()
    conn.execute("INSERT INTO store.lease (device_id, run_id, use) VALUES ('batch-1.cpu0', 999, 'engine')")
    [job] = jobs(admin_api)
    assert (job["registered"], job["leases"], job["state"]) == (True, 1, "running")
    assert job["cost"] is None
    slurm.job(job["native"], job["name"], "NODE_FAIL")
    rounds()
    assert conn.execute("SELECT state FROM store.lease WHERE run_id = 999").fetchone() == ("ended",)
    assert admin_api.get("/api/v1/nodes").json()["results"] == []
    assert admin_api.get("/api/v1/pools/batch").json()["devices"] == 0
    ended = next(row for row in jobs(admin_api) if row["id"] == job["id"])
    assert (ended["state"], ended["reason"]) == ("failed", "NODE_FAIL")


def test_a_job_of_a_host_at_work_is_cancelled_once_it_is_empty(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    slurm.job(job["native"], job["name"], "RUNNING")
    rounds()
    register(job["node"], "cpu0", "cpu1")
    conn = store_connection()
    conn.execute("INSERT INTO store.lease (device_id, run_id, use) VALUES ('batch-1.cpu0', 999, 'engine')")
    assert admin_api.post(f"{job['url']}/actions/cancel").status_code == 200
    rounds(2)
    assert admin_api.get("/api/v1/nodes/batch-1").json()["state"] == "draining"
    assert slurm.lines("cancelled") == []
    conn.execute("UPDATE store.lease SET state = 'ended' WHERE run_id = 999")
    rounds(2)
    assert set(slurm.lines("cancelled")) == {job["native"]}
    assert admin_api.post(f"{job['url']}/actions/cancel").status_code == 409
    entry = admin_api.get("/api/v1/changes?kind=pool&name=batch").json()["results"][0]
    assert (entry["action"], entry["detail"]["job"]) == ("pool.cancel-job", job["id"])


def test_of_two_jobs_of_one_row_one_works(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    rounds()
    [job] = jobs(admin_api)
    conn = store_connection()
    assert host_jobs.claim(conn, UUID(job["id"]), "41")
    assert not host_jobs.claim(conn, UUID(job["id"]), "42")
    assert host_jobs.claim(conn, UUID(job["id"]), "41"), "it may start again"


def test_jobs_that_ended_are_kept_up_to_a_number(admin_api: Any, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_jobs, "MOST_ENDED", 2)
    conn, made = store_connection(), [UUID(int=number) for number in range(1, 5)]
    for identity in made:
        host_jobs.ask(conn, identity, pool, SLURM, "a test")
    for identity in made[:3]:
        job = host_jobs.job(conn, identity)
        assert job is not None
        host_jobs.ended(conn, job, "ended", "")
    assert {one["id"] for one in jobs(admin_api)} == {str(one) for one in made[1:]}, "the one that goes on, and two"


def test_failures_wait_longer_each_time(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    slurm.job(job["native"], job["name"], "FAILED", "NonZeroExitCode")
    log = Path(f"{slurm.folder.parent}/home/nodes/batch-1/logs/batch-{job['native']}.log")
    log.write_text("allocated: the database does not answer this host\n")
    rounds(3)
    [job] = jobs(admin_api)
    assert job["reason"] == "FAILED (NonZeroExitCode): allocated: the database does not answer this host"
    store_connection().execute("UPDATE store.host_job SET ended_at = ended_at - interval '11 seconds'")
    rounds(2)
    assert [row["state"] for row in jobs(admin_api)] == ["pending", "failed"]


def test_a_pool_with_jobs_is_not_deleted_and_gives_them_back(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    slurm.job(job["native"], job["name"], "PENDING", "Resources")
    version = f'W/"{admin_api.get("/api/v1/pools/batch").json()["version"]}"'
    assert admin_api.delete("/api/v1/pools/batch", headers={"If-Match": version}).status_code == 409
    static = {"provider": {"type": "static"}}
    assert (
        admin_api.patch("/api/v1/pools/batch", static, format="json", headers={"If-Match": version}).status_code == 200
    )
    rounds(2)
    assert set(slurm.lines("cancelled")) == {job["native"]}
    slurm.job(job["native"], job["name"], "CANCELLED")
    rounds()
    version = f'W/"{admin_api.get("/api/v1/pools/batch").json()["version"]}"'
    assert admin_api.delete("/api/v1/pools/batch", headers={"If-Match": version}).status_code == 204
