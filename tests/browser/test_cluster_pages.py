"""Pools and nodes, the drain panel and the queue over seeded rows: what they show, and what pressing does."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]


def test_a_drain_is_shown_then_asked_for_then_taken_back(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/cluster")
    node = guest.page.locator("section#atlas")
    node.get_by_role("link", name="Drain atlas", exact=True).click()
    rail = guest.page.locator("#rail")
    assert rail.get_by_role("heading", level=2).inner_text() == "Drain atlas"
    assert rail.locator(".wc li").count() >= 2
    rail.get_by_role("link", name="Wait").click()
    guest.page.wait_for_url("**mode=wait")
    rail.get_by_label("Note for the change log").fill("New memory on Friday")
    rail.get_by_role("button", name="Drain when").click()
    guest.page.wait_for_url("**/cluster")
    node.get_by_role("button", name="Enable atlas", exact=True).wait_for()
    assert "New memory on Friday" in node.inner_text()
    assert "New memory on Friday" in guest.page.locator("#change-log").inner_text()
    node.get_by_role("button", name="Enable atlas", exact=True).click()
    guest.page.locator("#confirm").get_by_role("button", name="Enable atlas").click()
    node.get_by_role("link", name="Drain atlas", exact=True).wait_for()


def test_a_device_is_cordoned_and_enabled(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/cluster")
    card = guest.page.locator("[id='atlas.cpu3']")
    card.get_by_role("button", name="Cordon atlas.cpu3").click()
    guest.page.locator("#confirm").get_by_role("button", name="Cordon atlas.cpu3").click()
    card.get_by_text("Cordoned").wait_for()
    card.get_by_role("button", name="Enable atlas.cpu3").click()
    guest.page.locator("#confirm").get_by_role("button", name="Enable atlas.cpu3").click()
    card.get_by_role("button", name="Cordon atlas.cpu3").wait_for()


def test_a_pool_gets_rules_and_goes_again(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/cluster?edit=new")
    guest.page.get_by_label("Name", exact=True).fill("spare")
    guest.page.get_by_label("Description").fill("Old machines")
    guest.page.get_by_role("button", name="Create pool").click()
    guest.page.wait_for_url("**/cluster")
    guest.goto("/cluster?edit=spare")
    guest.page.get_by_label("default", exact=True).last.fill("2")
    guest.page.get_by_role("button", name="Set quota of default").click()
    guest.page.locator("#pool-spare", has_text="default holds 0 of its 2").wait_for()
    guest.page.get_by_role("button", name="Delete pool").click()
    guest.page.locator("#confirm").get_by_role("button", name="Delete spare").click()
    guest.page.wait_for_url("**/cluster")
    assert guest.page.locator("#pool-spare").count() == 0


def test_members_read_and_do_not_rule(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in("newcomer")
    guest.goto("/cluster")
    assert guest.page.locator("[data-rule]").count() == 0
    assert "cordoning and draining need the Cluster admin role" in guest.page.locator("#read-only").inner_text()
    guest.goto("/cluster?drain=atlas")
    assert "You can read this node, not drain it." in guest.page.locator("#rail").inner_text()
    assert guest.page.locator("#rail .btn.pri").count() == 0


def test_a_pool_asks_slurm_for_hosts_and_shows_their_jobs(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/cluster?edit=new")
    guest.page.get_by_label("Name", exact=True).fill("batch")
    guest.page.get_by_label("Price of a device hour").fill("2.5")
    assert guest.page.get_by_label("Partition").is_hidden()
    guest.page.get_by_label("Host provider").select_option("slurm")
    guest.page.get_by_label("Partition").fill("gpu")
    options = guest.page.get_by_label("Additional sbatch options")
    options.fill("--constraint=a100\n--time=5")
    guest.page.get_by_role("button", name="Create pool").click()
    error = guest.page.locator("#rail .fe").first
    error.wait_for()
    assert "--time is set by FlexMARL; set time_limit_minutes instead" in error.inner_text()
    assert options.get_attribute("aria-invalid") == "true"
    options.fill("--constraint=a100")
    guest.page.get_by_role("button", name="Create pool").click()
    guest.page.wait_for_url("**/cluster")
    guest.goto("/cluster?pool=batch")
    hosts = guest.page.locator("#hosts")
    assert "No hosts requested" in hosts.inner_text()
    assert "no process requests hosts from providers" in guest.page.locator("#no-provide").inner_text()
    hosts.get_by_role("link", name="Dry run").click()
    guest.page.wait_for_url("**try=batch**")
    assert "#SBATCH --constraint=a100" in guest.page.locator("#script").inner_text()
    _add_jobs(seeded.environment["DATABASE_URL"])
    looks = (("light", 1440), ("dark", 1440), ("light", 390))
    for rail in ("", "&try=batch", "&edit=batch"):
        guest.goto(f"/cluster?pool=batch{rail}")
        assert guest.seen_in(f"cluster-hosts{rail[1:4]}", looks, "#main, main") == {}
        guest.turn(*looks[0])
    assert "Invalid account" in guest.page.locator("#refused-batch-3").inner_text()
    rows = guest.page.locator("#hosts tbody tr")
    states = [row.split("\t")[1].split()[0] for row in rows.all_inner_texts()]
    assert sorted(states) == ["Failed", "Leaving", "Pending", "Refused"]
    assert states[-1] == "Failed", "what has ended comes last"


def test_a_pool_asks_a_ray_cluster_for_hosts(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/cluster?edit=new")
    guest.page.get_by_label("Name", exact=True).fill("rays")
    guest.page.get_by_label("Host provider").select_option("ray")
    assert guest.page.get_by_label("Partition").is_hidden()
    guest.page.get_by_label("Cluster address").fill("127.0.0.1:1")
    resources = guest.page.get_by_label("Custom resources")
    resources.fill("h100=1\nGPU=2")
    guest.page.get_by_label("Environment variables").fill("NCCL_DEBUG=INFO")
    guest.page.get_by_role("button", name="Create pool").click()
    error = guest.page.locator("#rail .fe").first
    error.wait_for()
    assert "GPU is set by FlexMARL; set devices instead" in error.inner_text()
    assert resources.get_attribute("aria-invalid") == "true"
    resources.fill("h100=1")
    guest.page.get_by_role("button", name="Create pool").click()
    guest.page.wait_for_url("**/cluster")
    guest.goto("/cluster?pool=rays&edit=rays")
    assert resources.input_value() == "h100=1"
    assert guest.page.get_by_label("Environment variables").input_value() == "NCCL_DEBUG=INFO"
    assert "FLEXMARL_RAY_PYTHON" in guest.page.locator("#no-provide").inner_text()
    guest.goto("/cluster?pool=rays&try=rays")
    assert '"h100": 1.0' in guest.page.locator("#rail pre").first.inner_text()
    assert "FLEXMARL_RAY_PYTHON" in guest.page.locator("#rail .note").last.inner_text()
    assert (guest.sideways(), guest.violations("#main, main")) == (0, [])


def test_a_pool_asks_a_kubernetes_cluster_for_hosts(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/cluster?edit=new")
    guest.page.get_by_label("Name", exact=True).fill("pods")
    guest.page.get_by_label("Host provider").select_option("kubernetes")
    assert guest.page.get_by_label("Cluster address").is_hidden()
    guest.page.get_by_label("Namespace").fill("training")
    guest.page.locator("#option-kubernetes-image").fill("registry.example.org/flexmarl:1")
    claims = guest.page.get_by_label("Volume claims")
    claims.fill("srv=flexmarl-home")
    guest.page.get_by_label("Tolerated taints").fill("nvidia.com/gpu:NoSchedule")
    guest.page.get_by_role("button", name="Create pool").click()
    error = guest.page.locator("#rail .fe").first
    error.wait_for()
    assert "write it like /srv/flexmarl" in error.inner_text()
    assert claims.get_attribute("aria-invalid") == "true"
    claims.fill("/srv/flexmarl=flexmarl-home")
    guest.page.get_by_role("button", name="Create pool").click()
    guest.page.wait_for_url("**/cluster")
    guest.goto("/cluster?pool=pods&edit=pods")
    assert claims.input_value() == "/srv/flexmarl=flexmarl-home"
    assert guest.page.get_by_label("Tolerated taints").input_value() == "nvidia.com/gpu:NoSchedule"
    assert "FLEXMARL_KUBECONFIG" in guest.page.locator("#no-provide").inner_text()
    guest.goto("/cluster?pool=pods&try=pods")
    assert "claimName: flexmarl-home" in guest.page.locator("#script").inner_text()
    assert "FLEXMARL_KUBECONFIG is not set" in guest.page.locator("#rail .note").last.inner_text()
    assert (guest.sideways(), guest.violations("#main, main")) == (0, [])


def _add_jobs(url: str) -> None:
    """Add a job that works, one that waits, one that Slurm refused and one that ended."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(
            """
            INSERT INTO store.host_job (id, pool, provider, node, options, state, native, reason, next_step, place, why,
              started_at, leaving_at, ended_at)
            SELECT gen_random_uuid(), 'batch', 'slurm', node, '{"type": "slurm"}', state, native, reason, step, place,
              why, now() - make_interval(mins => began), now() + make_interval(mins => leaves),
              now() - make_interval(mins => ended)
            FROM (VALUES
              ('batch-1', 'leaving', '4711', 'RUNNING', '', 'node-017', 'its time limit is near', 62, 4, NULL::int),
              ('batch-2', 'pending', '4712', 'PENDING (QOSMaxJobsPerUserLimit)', '', '', '2 requests for devices wait',
               NULL, NULL, NULL),
              ('batch-3', 'refused', '', 'Invalid account or account/partition combination specified',
               'Set account to one that sacctmgr show associations user=$USER lists.', '', '1 request waits',
               NULL, NULL, NULL),
              ('batch-1', 'failed', '4700', 'FAILED (NonZeroExitCode): allocated: the database does not answer this '
               'host: connection refused', '', 'node-003', '1 request waits', 200, NULL, 190)
            ) AS v (node, state, native, reason, step, place, why, began, leaves, ended)
            """
        )
