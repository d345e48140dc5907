"""Nodes with tokens of one pool: who learns how the others are read, and what they hear when they say who they are."""

from typing import Any

import pytest
from django.test import Client

from flexmarl.contracts.events import DeviceUse
from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import leases, nodes
from flexmarl.store.control.nodes import NodeFacts, NodePeer
from flexmarl.store.node_operations import NO_RUN
from tests.controlplane.test_node_door import granted, hosted, made
from tests.support.store_story import Story
from workers.door.client import NotItsOwn

pytestmark = pytest.mark.django_db

KEY = "k" * 40


@pytest.fixture
def story() -> Story:
    return Story(store_connection(), node="far-1").start()


def registered(door: Any, node: str, pool: str, peer: str = "", key: str = KEY) -> list[leases.DeviceFacts]:
    devices = [leases.DeviceFacts(f"{node}.cpu{i}", "cpu", i, pool=pool, facts={"cores": 1.0}) for i in range(2)]
    nodes.register_node(door, NodeFacts(node, "", "life", "0", {"cpus": 2}, peer, key if peer else ""), devices)
    return devices


def test_nodes_of_a_pool_learn_how_the_others_of_it_are_read(story: Story) -> None:
    one, other, stranger = (made(node, pool) for node, pool in (("far-1", "default"), ("far-2", "default"), ("x", "y")))
    devices = registered(one, "far-1", "default", "10.0.0.1:7000")
    registered(other, "far-2", "default", "10.0.0.2:7000")
    registered(stranger, "x", "y", "10.0.0.3:7000")
    held = granted(story, devices)
    hosted(story, one, held[DeviceUse.TRAINER], DeviceUse.TRAINER, "t1.1.1")
    story.conn.execute(
        "UPDATE store.command SET queue = 'rollout.default' WHERE run_id = %s AND lease_id IS NULL", [story.run_id]
    )
    assert nodes.peers_of(other, "far-2", story.run_id) == [NodePeer("10.0.0.1:7000", KEY, True, True)]
    assert nodes.peers_of(one, "far-1", story.run_id) == [NodePeer("10.0.0.2:7000", KEY, False, False)]
    assert nodes.peers_of(other, "far-2", NO_RUN) == [NodePeer("10.0.0.1:7000", KEY, False, False)], (
        "models are no run's"
    )
    for door, node in ((other, "far-1"), (stranger, "x"), (stranger, "far-2")):
        with pytest.raises(NotItsOwn, match=r"may not do nodes\.peers_of"):
            nodes.peers_of(door, node, story.run_id)
    nodes.register_node(story.conn, NodeFacts("far-1", "", "later", "0"), devices)
    assert nodes.peers_of(other, "far-2", story.run_id) == [], "it is read nowhere any more"


@pytest.mark.parametrize(("peer", "key"), [("http://10.0.0.1/x", KEY), ("10.0.0.1", KEY), ("10.0.0.1:7000", "short")])
def test_where_a_node_is_read_is_an_address_behind_a_key_that_nobody_guesses(peer: str, key: str) -> None:
    with pytest.raises(NotItsOwn):
        registered(made("far-1", "default"), "far-1", "default", peer, key)


def test_a_node_hears_where_the_others_of_its_pool_are() -> None:
    one, other = made("far-1", "default"), made("far-2", "default")

    def said(door: Any) -> dict[str, str]:
        told: dict[str, str] = Client(headers={"Authorization": door.authorization}).get("/nodes/hello").json()["peers"]
        return told

    assert said(one) == {}, "it has not registered"
    registered(other, "far-2", "default", "10.0.0.2:7000")
    assert (said(one), said(other)) == ({"far-2": "10.0.0.2:7000"}, {})
