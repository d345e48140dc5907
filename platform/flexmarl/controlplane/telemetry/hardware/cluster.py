"""The hardware with the runs that hold it, and the gauges of the whole installation."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from django.db.models import Count
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flexmarl.contracts.status import shown_status
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.inventory.models import Interval
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs import queue
from flexmarl.controlplane.runs.models import RunStateRow


def devices(among: Collection[str] | None = None, *, actor: Actor) -> list[dict[str, Any]]:
    """All devices (or some, by id) with the run, the agents and the phase of each one's lease.

    A run of a project that the actor may not read has neither name nor agents.
    """
    rows = inventory.devices(among)
    held = [row["lease"] for row in rows if row["lease"]]
    known = runs.runs(actor).filter(no__in={lease["run_no"] for lease in held})
    names = {row["no"]: row for row in runs.run_rows(known)}
    phases = _last_phases([lease["id"] for lease in held])
    for lease in held:
        row = names.get(lease["run_no"])
        lease["run"] = row and {name: row[name] for name in ("id", "key", "name", "project", "web_url")}
        lease["run_text"] = row["key"] if row else queue.SOMEBODY
        lease["agents"] = _agents(row, lease["use"])
        lease["phase"], lease["policy"], lease["phase_ended_at"] = phases.get(lease["id"], ("", "", None))
    return rows


def _agents(row: dict[str, Any] | None, use: str) -> list[dict[str, Any]]:
    """Whose work a lease does: an engine answers for every agent, a trainer trains those that learn."""
    if row is None:
        return []
    return [agent for agent in row["agents"] if use == "engine" or agent["trainable"]]


def _last_phases(leases: list[int]) -> dict[int, tuple[str, str, float]]:
    """Return (phase, policy, end) of the newest closed interval per lease."""
    rows = Interval.objects.filter(lease_id__in=leases).order_by("lease_id", "-t1").distinct("lease_id")
    return {row.lease_id: (row.phase, row.policy, row.t1) for row in rows}


class InstallationGauges(Collector):
    """Gauges of the installation as they are when Prometheus asks."""

    def collect(self) -> Iterator[Metric]:
        """Read them from the database."""
        yield _gauge("flexmarl_runs", "Runs by status.", ("status",), _runs_by_status())
        yield _gauge("flexmarl_devices", "Devices by pool and state.", ("pool", "state"), _devices_by_state())
        silent: dict[tuple[str, ...], float] = {(node["name"],): node["silent_s"] for node in inventory.nodes()}
        yield _gauge("flexmarl_node_silent_seconds", "Seconds since a node's last heartbeat.", ("node",), silent)


def _gauge(name: str, words: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(name, words, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _runs_by_status() -> Counter[tuple[str, ...]]:
    rows = RunStateRow.objects.values("status", "reason").annotate(count=Count("pk")).order_by("status", "reason")
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        found[shown_status(row["status"], row["reason"]),] += row["count"]
    return found


def _devices_by_state() -> dict[tuple[str, ...], int]:
    found = inventory.devices()
    pools = sorted({device["pool"] for device in found})
    counts: dict[tuple[str, ...], int] = {(pool, state): 0 for pool in pools for state in _STATES}
    for device in found:
        counts[device["pool"], _state_of(device)] += 1
    return counts


_STATES = ("free", "leased", "unavailable")


def _state_of(device: Mapping[str, Any]) -> str:
    if device["lease"] is not None:
        return "leased"
    return "free" if device["free"] else "unavailable"
