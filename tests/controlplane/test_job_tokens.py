"""Hosts of providers that get a node token of their own: how it is made, reaches them, and ends with its job."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.test import Client

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.problems import Conflict
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import node_tokens, queries
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.node_tokens import TokenRefused
from flexmarl.store.control import host_jobs, nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from tests.controlplane.test_node_door import ClientDoor
from tests.support.played_slurm import PlayedSlurm, played_slurm
from tests.support.providing import jobs, rounds
from workers.door.client import NotItsOwn

pytestmark = pytest.mark.django_db

SYSTEM = Actor.system()
URL = "https://flexmarl.example.org"
SLURM = {"type": "slurm", "devices": 2, "max_nodes": 2, "min_nodes": 1, "access": "node_token"}
SECRETS = {"FLEXMARL_EXTERNAL_SECRET_SEARCH": "secret-of-a-service", "FLEXMARL_EXCHANGE_KEY": "ab" * 32}
JOB, OTHER = UUID(int=7), UUID(int=8)


@pytest.fixture
def slurm(tmp_path: Path, settings: Any) -> PlayedSlurm:
    settings.HOST_SETTINGS = {"FLEXMARL_CONTROL_URL": URL, "FLEXMARL_HUB": "https://hub.example.org", **SECRETS}
    return played_slurm(tmp_path, settings)


@pytest.fixture
def pool(admin_api: Any, slurm: PlayedSlurm) -> str:
    made = admin_api.post("/api/v1/pools", {"name": "batch", "provider": SLURM}, format="json")
    assert made.status_code == 201, made.content
    return "batch"


def change(api: Any, **provider: Any) -> Any:
    version = api.get("/api/v1/pools/batch").json()["version"]
    headers = {"If-Match": f'W/"{version}"'}
    return api.patch("/api/v1/pools/batch", {"provider": provider}, format="json", headers=headers)


def token_of(slurm: PlayedSlurm) -> str:
    """Return the token in the script that was submitted last."""
    [line] = [line for line in slurm.lines("last.sh") if line.startswith("export FLEXMARL_NODE_TOKEN=")]
    return line.partition("=")[2]


def standing(text: str) -> NodeToken | TokenRefused:
    return node_tokens.check_all([f"Bearer {text}"])[0]


def test_the_token_of_a_job_is_the_same_whenever_it_is_asked_for(settings: Any) -> None:
    text = node_tokens.for_job(SYSTEM, JOB, "batch-1", "batch")
    assert node_tokens.for_job(SYSTEM, JOB, "batch-1", "batch") == text
    assert node_tokens.for_job(SYSTEM, OTHER, "batch-2", "batch") != text
    kept = NodeToken.objects.get(job=JOB)
    assert standing(text) == kept
    assert (kept.node, kept.pool, NodeToken.objects.count()) == ("batch-1", "batch", 2)
    assert text.partition(".")[2] not in str(list(NodeToken.objects.values()) + list(AuditEntry.objects.values()))
    settings.TOKEN_PEPPER = "another"
    assert isinstance(standing(text), TokenRefused)
    with pytest.raises(Conflict, match="has a token already"):
        node_tokens.for_job(SYSTEM, JOB, "batch-1", "batch")


def test_nodes_with_tokens_share_a_pool_and_none_with_nodes_that_have_secrets() -> None:
    conn = store_connection()
    for node in ("far-1", "far-2"):
        node_tokens.create(SYSTEM, node, "far")
        nodes.register_node(conn, NodeFacts(node, "", "a", "1"), [DeviceFacts(f"{node}.cpu0", "cpu", 0, pool="far")])
    nodes.register_node(
        conn, NodeFacts("box", "10.0.0.1:7100", "a", "1"), [DeviceFacts("box.cpu0", "cpu", 0, pool="default")]
    )
    with pytest.raises(Conflict, match="have devices in default"):
        node_tokens.create(SYSTEM, "far-3", "default")
    conn.execute("UPDATE store.node SET state = 'gone' WHERE name = 'box'")
    node_tokens.create(SYSTEM, "far-3", "default")
    node_tokens.create(SYSTEM, "box", "default")


def test_the_script_alone_has_the_token_and_the_dry_run_stands_for_it(
    admin_api: Any, pool: str, slurm: PlayedSlurm, settings: Any
) -> None:
    shown = admin_api.get("/api/v1/pools/batch/submission").json()
    assert (shown["settings_file"], shown["notices"]) == ("", []), "nothing of it is about databases or brokers"
    rounds(2)
    [job] = jobs(admin_api)
    script, token = (slurm.folder / "last.sh").read_text(), token_of(slurm)
    example = shown["script"].replace(host_jobs.name_of(UUID(int=0)), job["name"]).replace(str(UUID(int=0)), job["id"])
    assert script == example.replace("fmn_...", token)
    assert f"export FLEXMARL_CONTROL_URL={URL}\n" in script
    assert "export FLEXMARL_HUB=" in script, "what is no secret"
    assert "--settings" not in script
    assert "#SBATCH --output=/tmp/flexmarl-%j.log\n" in script
    assert not (settings.HOME / "host-settings.json").exists()
    assert "OLDPWD=/" in slurm.lines("last.env"), "a job begins where it was submitted: in no folder of ours"
    everywhere = script + "".join(slurm.lines("last.env")) + json.dumps(shown)
    assert not [secret for secret in (*SECRETS.values(), "cluster-key-of-the-test") if secret in everywhere]
    assert token not in json.dumps([shown, job]) + "".join(slurm.lines("last.env"))
    own = standing(token)
    assert isinstance(own, NodeToken)
    assert (own.node, own.pool, str(own.job)) == ("batch-1", "batch", job["id"])
    bearer = Client(headers={"Authorization": f"Bearer {token}"})
    assert bearer.get("/nodes/hello").json()["node"] == "batch-1"


@pytest.mark.parametrize(
    ("options", "folder", "python"),
    [
        ({"home": "/scratch/flexmarl"}, "", ""),
        ({"checkout": "/opt/flexmarl", "python": "/opt/python"}, "/opt/flexmarl", "/opt/python"),
    ],
)
def test_home_checkout_and_interpreter_of_the_hosts_are_the_pools(
    admin_api: Any, slurm: PlayedSlurm, settings: Any, options: dict[str, str], folder: str, python: str
) -> None:
    admin_api.post("/api/v1/pools", {"name": "batch", "provider": {**SLURM, **options}}, format="json")
    script = admin_api.get("/api/v1/pools/batch/submission").json()["script"]
    folder = folder or str(settings.ROOT)
    assert f"\ncd {folder} || exit 78\nexport PYTHONPATH={folder}:{folder}/platform\n" in script
    assert ("--home /scratch/flexmarl " in script) == ("home" in options)
    assert f"exec {python}" in script


@pytest.mark.parametrize(
    ("url", "words"), [("", "is not set"), ("http://127.0.0.1:8000", "this host alone (127.0.0.1)")]
)
def test_an_address_that_hosts_cannot_use_is_told(
    admin_api: Any, pool: str, slurm: PlayedSlurm, settings: Any, url: str, words: str
) -> None:
    settings.HOST_SETTINGS = {"FLEXMARL_CONTROL_URL": url}
    [notice] = admin_api.get("/api/v1/pools/batch/submission").json()["notices"]
    assert "FLEXMARL_CONTROL_URL: it " in notice
    assert words in notice
    rounds(2)
    [job] = jobs(admin_api)
    assert job["state"] == ("pending" if url else "refused")
    assert ("such as https://flexmarl.example.org" in job["next_step"]) == (not url)


def test_a_submission_that_is_repeated_says_the_same(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    said = "Batch job submission failed: Unable to contact slurm controller (connect failure)"
    slurm.says("sbatch", f'cat > last.sh; echo "sbatch: error: {said}" >&2; exit 1')
    rounds(2)
    first = token_of(slurm)
    slurm.says("sbatch", "cat > last.sh; echo 7")
    rounds()
    assert (token_of(slurm), NodeToken.objects.count()) == (first, 1)


def test_a_token_ends_with_its_job_before_the_name_is_given_again(
    admin_api: Any, pool: str, slurm: PlayedSlurm
) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    first = token_of(slurm)
    slurm.job(job["native"], job["name"], "RUNNING")
    rounds(2)
    assert isinstance(standing(first), NodeToken)
    slurm.job(job["native"], job["name"], "COMPLETED")
    rounds()
    slurm.says("sbatch", "cat > last.sh; echo 8")
    rounds()
    assert str(standing(first)) == "the node token of batch-1 is revoked"
    newest = next(one for one in jobs(admin_api) if one["native"] == "8")
    slurm.job("8", newest["name"], "RUNNING")
    rounds()
    second, own = token_of(slurm), standing(token_of(slurm))
    assert isinstance(own, NodeToken)
    assert (own.node, second != first) == ("batch-1", True)
    change(admin_api, type="static")
    rounds(2)
    slurm.job("8", newest["name"], "CANCELLED")
    rounds(2)
    assert isinstance(standing(second), TokenRefused), "without a pool that grows as well"
    written = AuditEntry.objects.filter(target_kind="node_token").order_by("id")
    assert [(one.actor_name, one.action) for one in written] == [
        ("provider", f"node_token.{verb}") for verb in ("create", "revoke", "create", "revoke")
    ]
    assert written[0].after == {"node": "batch-1", "pool": "batch", "job": job["id"]}


def test_administrators_see_a_jobs_token_and_revoke_it_but_do_not_rotate_it(
    admin_api: Any, pool: str, slurm: PlayedSlurm, person: Any
) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    slurm.job(job["native"], job["name"], "RUNNING")
    rounds()
    [row] = admin_api.get("/api/v1/node-tokens?state=active").json()["results"]
    assert (row["job"], row["node"], row["created_by"]) == (job["id"], "batch-1", None)
    refused = admin_api.post(f"{row['url']}/actions/rotate", {})
    assert (refused.status_code, "is its job's and ends with it" in refused.json()["detail"]) == (409, True)
    admin = Client()
    admin.force_login(person("cluster_admin"))
    page = admin.get("/cluster?add=node").content.decode()
    assert ("of its job" in page, f"{row['url']}/actions/rotate" in page) == (True, False)
    assert admin_api.delete(row["url"]).status_code == 204
    slurm.job(job["native"], job["name"], "FAILED", "NonZeroExitCode")
    rounds()
    ended = next(one for one in jobs(admin_api) if one["id"] == job["id"])
    assert (ended["state"], ended["reason"]) == (
        "failed", "FAILED (NonZeroExitCode): its node token was revoked",
    )  # fmt: skip


def test_a_job_whose_token_cannot_be_is_refused_with_the_reason(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    held, _ = node_tokens.create(SYSTEM, "batch-1", "other")
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], slurm.lines("calls")) == ("refused", [])
    assert job["reason"].startswith("batch-1 has a token already.")
    node_tokens.revoke(SYSTEM, held.id)
    store_connection().execute("UPDATE store.host_job SET try_at = clock_timestamp()")
    rounds()
    assert jobs(admin_api)[0]["state"] == "pending"


def test_the_access_of_a_pool_changes_when_its_hosts_are_gone(admin_api: Any, pool: str, slurm: PlayedSlurm) -> None:
    assert queries.is_behind_the_door("batch"), "before it has a host"
    rounds(2)
    shared = {**SLURM, "access": "shared_folder"}
    for provider in (shared, {"type": "static"}, shared):
        answer = change(admin_api, **provider)
        assert answer.status_code == (200 if provider["type"] == "static" else 409)
    assert "Hosts of batch with access node_token" in answer.json()["detail"]
    assert change(admin_api, **SLURM, idle_s=20).status_code == 200
    store_connection().execute("UPDATE store.host_job SET ended_at = clock_timestamp()")
    assert change(admin_api, **shared).status_code == 200


def test_a_host_says_what_becomes_of_its_own_job_and_of_no_other() -> None:
    conn = store_connection()
    for job in (JOB, OTHER):
        host_jobs.ask(conn, job, "batch", {**SLURM}, "a test")
    own, other = host_jobs.job(conn, JOB), host_jobs.job(conn, OTHER)
    assert own is not None
    assert other is not None
    door: Any = ClientDoor(node_tokens.for_job(SYSTEM, JOB, own.node, "batch"))
    for call in (
        lambda conn: host_jobs.claim(conn, OTHER, "42"),
        lambda conn: host_jobs.leave(conn, OTHER, "because", None),
        lambda conn: host_jobs.is_used(conn, OTHER),
        lambda conn: host_jobs.leave(conn, JOB, "because", float("inf")),
        lambda conn: host_jobs.leave(conn, JOB, "because", float("nan")),
    ):
        with pytest.raises(NotItsOwn, match="may not do"):
            call(door)
    found = host_jobs.job(conn, OTHER)
    assert found is not None
    assert (found.state, found.native) == (other.state, other.native)
    assert not host_jobs.is_used(door, JOB), "its node has not registered"
    assert host_jobs.claim(door, JOB, "41")
    assert not host_jobs.claim(door, JOB, "42"), "another job of this row works"
    nodes.register_node(conn, NodeFacts(own.node, "", "a", "1"), [])
    assert host_jobs.is_used(door, JOB)
    assert host_jobs.leave(door, JOB, "x" * 5000, 2e9)
    left = host_jobs.job(conn, JOB)
    assert left is not None
    assert (left.state, left.node_state, left.leaving_at, len(left.why)) == ("leaving", "draining", 2e9, 1000)
    assert not host_jobs.is_used(door, JOB)
    host_jobs.ended(conn, left, "ended", "")
    with pytest.raises(NotItsOwn, match="may not do"):
        host_jobs.claim(door, JOB, "41")
