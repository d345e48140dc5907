"""What ended runs are held to: an engine that is to serve one version at a time and holds two is found."""

from typing import Any

from flexmarl.contracts.events import Event, PolicyUnloaded, WeightsServed
from tests.support.promised import _held


def serves(version: int, **which: Any) -> WeightsServed:
    own: dict[str, Any] = {"lease_id": 1, "incarnation": "a", "policy": "solver", "command_no": 1, **which}
    return WeightsServed(version=version, digest=f"{version:064x}", **own)


def test_versions_that_an_engine_holds_at_once_are_counted() -> None:
    gone = PolicyUnloaded(lease_id=1, incarnation="a", policy="solver", command_no=3)
    kept: list[Event] = [serves(0), gone, serves(1), serves(1, lease_id=2), serves(2, incarnation="b")]
    assert _held(kept) == 1
    assert _held([serves(0), serves(1), gone]) == 2
