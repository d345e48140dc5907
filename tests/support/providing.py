"""Rounds of asking providers for hosts, and what the pool `batch` then shows."""

from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.providing.loop import Providing


def rounds(count: int = 1) -> None:
    """Ask providers so many times, as `manage.py provide` does."""
    providing = Providing(store_connection())
    assert providing.owns()
    for _ in range(count):
        providing.round()


def jobs(api: Any) -> list[dict[str, Any]]:
    """Return the jobs of the pool, as REST shows them."""
    rows: list[dict[str, Any]] = api.get("/api/v1/pools/batch/jobs").json()["results"]
    return rows
