"""Adding a node: the page prints what another host can use, or names the setting that is missing."""

import pytest
from django.test import Client

from flexmarl.controlplane.inventory.joining import joining_with, only_here
from flexmarl.controlplane.inventory.providers import host_settings
from flexmarl.controlplane.settings import env
from flexmarl.store import database_address
from tests.support.markup import markup


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("", True), ("/tmp/sockets", True), ("localhost", True), ("127.0.0.1", True), ("127.3.2.1", True),
        ("::1", True), ("[::1]", True), ("10.0.0.7", False), ("db.example.org", False), ("fd00::7", False),
    ],
)  # fmt: skip
def test_an_address_of_this_host_alone_is_known(host, here) -> None:
    assert only_here(host) is here


def test_addresses_that_others_reach_are_printed_without_their_secrets() -> None:
    database = {"HOST": "db.example.org", "PORT": "5433", "USER": "flex", "PASSWORD": "hidden", "NAME": "runs"}
    found = joining_with(database, "redis://:hidden@10.0.0.7:6380/2")
    assert found.missing == []
    assert found.database == "postgresql://flex:PASSWORD@db.example.org:5433/runs"
    assert found.broker == "redis://:PASSWORD@10.0.0.7:6380/2"


def test_a_server_that_only_this_host_reaches_names_its_setting() -> None:
    found = joining_with({"HOST": "/tmp/sockets"}, "redis://10.0.0.7:6379/0")
    assert [setting for setting, _ in found.missing] == ["DATABASE_URL"]
    assert "PostgreSQL server that they can reach" in found.missing[0][1]
    assert found.database == ""


@pytest.mark.django_db
def test_the_page_prints_one_or_the_other(person, monkeypatch) -> None:
    admin = Client()
    admin.force_login(person("cluster_admin"))

    def page() -> str:
        return markup(admin.get("/cluster?add=node"))

    assert "export DATABASE_URL" not in page()
    assert "<code>DATABASE_URL</code>" in page()
    reached = joining_with({"HOST": "db.example.org"}, "redis://10.0.0.7:6379/0")
    monkeypatch.setattr("webui.views.cluster.joining", lambda: reached)
    assert "export DATABASE_URL=postgresql://" in page()
    assert "@db.example.org:" in page()
    assert "FLEXMARL_NODE_BIND=" in page()
    assert "testserver" not in page().partition("add-command")[2].partition("</pre>")[0]


def test_several_servers_of_a_database_are_told_with_the_one_that_is_wanted() -> None:
    several = {"HOST": "db-one,fd00::2", "PORT": "5432,5433", "OPTIONS": {"target_session_attrs": "read-write"}}
    found = joining_with(several, "redis://10.0.0.7:6379/0")
    address = "postgresql://USER:PASSWORD@db-one:5432,[fd00::2]:5433/flexmarl?target_session_attrs=read-write"
    assert (found.database, found.missing) == (address, [])
    assert database_address.read("X", found.database)["host"] == "db-one,fd00::2"
    one_is_here = joining_with({"HOST": "db-one,127.0.0.1"}, "redis://10.0.0.7:6379/0")
    assert [setting for setting, _ in one_is_here.missing] == ["DATABASE_URL"]


def test_hosts_are_given_an_address_that_they_can_read(monkeypatch) -> None:
    for address in (
        "postgresql://u:p%2Fw@one:5432,two:5433/name?target_session_attrs=read-write",
        "postgresql://u:p%2Fw@[fd00::2]:5433/name?sslmode=require",
        "postgresql:///name?host=/var/run/postgresql",
    ):
        monkeypatch.setenv("X", address)
        monkeypatch.setattr(host_settings.settings, "DATABASES", {"default": env.database("X", "")})
        given = host_settings.host_settings()["DATABASE_URL"]
        assert database_address.read("X", given) == database_address.read("X", address)
