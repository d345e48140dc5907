"""Hosts that ask to join: their tokens, what they say of themselves, and requests of them."""

from flexmarl.contracts.node_joining import JoiningDevice, NodeJoinRequest
from flexmarl.controlplane.inventory import node_joins, node_tokens
from flexmarl.controlplane.inventory.models import NodeJoin
from workers.door.joining import new_token

GPU = JoiningDevice(kind="cuda", name="NVIDIA H200", memory_bytes=141 * 2**30)
SHARE = JoiningDevice(kind="cpu", name="CPU share 1 of 4", memory_bytes=2 * 2**30)


def request(node: str = "far-1", pool: str = "", host_name: str = "far-1.example.org") -> NodeJoinRequest:
    """Return what a host with two GPUs and a share of its processors says."""
    return NodeJoinRequest(
        node=node, pool=pool or node, host_name=host_name, agent_version="1.2", devices=[GPU, GPU, SHARE]
    )


def make_node_join(node: str = "far-1", token: str = "", address: str = "203.0.113.7") -> NodeJoin:
    """Have a host ask; returns its request."""
    named = node_tokens.pair(f"Bearer {token or new_token()}")
    assert named is not None
    node_joins.ask(*named, request(node), address)
    return NodeJoin.objects.get(key=named[0])
