"""Which projects may share: none that no administrator has named."""

import pytest

from flexmarl.controlplane.experiments.plans import Draft, plan

pytestmark = pytest.mark.django_db
DRAFT = {"template": "hot_cold", "spec": {"sampling": {"sharing": "exchange"}}, "project": "default"}


def test_a_project_shares_only_where_it_was_opted_in(settings) -> None:
    (refused,) = plan(Draft(**DRAFT))["errors"]
    assert refused["code"] == "not_opted_in"
    assert refused["pointer"] == "/sampling/sharing/type"
    assert "FLEXMARL_EXCHANGE_PROJECTS" in refused["hint"]
    settings.EXCHANGE_PROJECTS = ["default"]
    found = plan(Draft(**DRAFT))
    assert found["errors"] == []
    assert found["spec"]["sampling"]["sharing"]["foreign"] == 4
    settings.EXCHANGE_PROJECTS = ["other"]
    assert plan(Draft(**{**DRAFT, "spec": {}}))["errors"] == [], "who does not share needs no leave"
