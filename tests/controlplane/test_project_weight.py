"""A project's weight beside others: set by a cluster admin, kept in the trail, read by the arbiter at every look."""

import pytest

from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.pool_look import look
from flexmarl.store.control import pool_rules

pytestmark = pytest.mark.django_db
API = "/api/v1"


def test_a_cluster_admin_sets_a_projects_weight_and_the_arbiter_reads_it(admin_api, person, client_of) -> None:
    boss = client_of(person(ProjectRole.ADMIN, "boss", "alpha"))
    url = f"{API}/projects/alpha"
    assert admin_api.get(url).json()["weight"] == 1.0
    answer = admin_api.patch(url, {"weight": 2.5}, headers={"If-Match": 'W/"1"'})
    assert (answer.status_code, answer.json()["weight"], answer.json()["version"]) == (200, 2.5, 2)
    row = AuditEntry.objects.filter(action="project.update").order_by("-id")[0]
    assert (row.before, row.after, row.target_name) == ({"weight": 1.0}, {"weight": 2.5}, "alpha")
    assert look(store_connection(), always=True).rules.weights == {"alpha": 2.5}
    assert boss.patch(url, {"description": "ours"}).status_code == 200
    refused = boss.patch(url, {"weight": 9.0})
    assert (refused.status_code, refused.json()["required_scopes"]) == (403, ["cluster:admin"])
    assert pool_rules.rules(store_connection()).weights == {"alpha": 2.5}


@pytest.mark.parametrize("weight", [0, -1, 0.05, 101, "nan", "inf"])
def test_a_weight_outside_of_its_range_names_field_rule_and_legal_value(admin_api, weight) -> None:
    answer = admin_api.patch(f"{API}/projects/default", {"weight": weight})
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["pointer"]) == (400, "/weight")
    assert "0.1 and 100" in error["detail"], error
    assert pool_rules.rules(store_connection()).weights == {}


def test_a_project_that_is_deleted_leaves_no_weight_behind(admin_api) -> None:
    admin_api.post(f"{API}/projects", {"name": "brief"})
    admin_api.patch(f"{API}/projects/brief", {"weight": 3})
    assert admin_api.delete(f"{API}/projects/brief").status_code == 204
    assert pool_rules.rules(store_connection()).weights == {}
