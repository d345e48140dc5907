"""A host that asks to join, to look at."""

JOIN = "5a1d2900-0000-0000-0000-00000000a0a1"


def node_join() -> None:
    """Have it ask, under an identity that pages are addressed with."""
    from flexmarl.controlplane.inventory.models import NodeJoin
    from tests.support.node_joins import make_node_join

    NodeJoin.objects.filter(pk=make_node_join("far-away-gpu-host-1").pk).update(id=JOIN)
