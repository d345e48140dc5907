"""The hardware with the runs that hold it, and the gauges of the whole installation."""

from typing import Any

from django.db.models import Count

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.inventory.models import Interval
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs import queue
from flexmarl.controlplane.runs.models import RunState


def devices(device_id: str | None = None, *, actor: Actor) -> list[dict[str, Any]]:
    """All devices (or one) with the run, the agents and the phase of each one's lease.

    A run of a project that the actor may not read has neither name nor agents.
    """
    rows = inventory.devices(device_id)
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


def gauges() -> dict[tuple[str, str], float]:
    """Return (name, labels) -> value of the installation's gauges."""
    values: dict[tuple[str, str], float] = {}
    for row in RunState.objects.values("status").annotate(count=Count("pk")).order_by("status"):
        values["flexmarl_runs", f'status="{row["status"]}"'] = row["count"]
    found = inventory.devices()
    for pool in sorted({device["pool"] for device in found}):
        own = [device for device in found if device["pool"] == pool]
        free, leased = sum(d["free"] for d in own), sum(d["lease"] is not None for d in own)
        values["flexmarl_devices", f'pool="{pool}",state="free"'] = free
        values["flexmarl_devices", f'pool="{pool}",state="leased"'] = leased
        values["flexmarl_devices", f'pool="{pool}",state="unavailable"'] = len(own) - free - leased
    for node in inventory.nodes():
        values["flexmarl_node_silent_seconds", f'node="{node["name"]}"'] = node["silent_s"]
    return values


_HELP = {
    "flexmarl_runs": "Runs by status.",
    "flexmarl_devices": "Devices by pool and state.",
    "flexmarl_node_silent_seconds": "Seconds since a node's last heartbeat.",
}


def prometheus_text() -> str:
    """Write the gauges in Prometheus' text format."""
    lines: list[str] = []
    seen = ""
    for (name, labels), value in gauges().items():
        if name != seen:
            lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge"]
            seen = name
        lines.append(f"{name}{{{labels}}} {value:g}")
    return "\n".join(lines) + "\n"
