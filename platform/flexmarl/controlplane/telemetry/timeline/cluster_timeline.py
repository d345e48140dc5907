"""What all devices did in a window: who held them, in which phase, and why they were idle.

A run of a project that the caller may not read has neither name, agents nor causes; that its device was held and busy
is no secret among people who share the hardware.
"""

from typing import Any

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry.timeline import bubble
from flexmarl.controlplane.telemetry.timeline.timeline import device_rows
from flexmarl.controlplane.telemetry.timeline.windows import DEFAULT_WINDOW_S, Window
from flexmarl.store.control import runs as stored_runs
from flexmarl.store.reads import activity
from flexmarl.store.telemetry import intervals

EXPLAINED_RUNS = 24
"""Runs whose idle time is split by cause; what they asked of their devices is read whole."""


def cluster_timeline(
    actor: Actor, window_s: float | None = None, *, until: float | None = None, pool: str = "", node: str = ""
) -> dict[str, Any]:
    """Return every device with its leases inside a window, and where held device time went."""
    conn = store_connection()
    now = stored_runs.database_now(conn)
    end = now if until is None else min(until, now)
    window = Window(end - (window_s or DEFAULT_WINDOW_S), end)
    every = inventory.devices()
    machines = [row for row in every if row["pool"] == (pool or row["pool"]) and row["node"] == (node or row["node"])]
    wanted = {row["id"] for row in machines}
    leases = [
        lease for lease in activity.leases_between(conn, None, window.since, window.until) if lease.device_id in wanted
    ]
    numbers = sorted({lease.run_id for lease in leases})
    known = {row["no"]: row for row in runs.run_rows(runs.runs(actor).filter(no__in=numbers))}
    found = intervals.between(conn, numbers, window.since, window.until) if numbers else []
    explained = [number for number in numbers[:EXPLAINED_RUNS] if number in known]
    commands = activity.asked_between(conn, explained, window.since, window.until) if explained else {}
    pauses = activity.pauses_of(conn, explained) if explained else {}
    devices = []
    for number in numbers:
        own = [lease for lease in leases if lease.run_id == number]
        held = {lease.lease_id for lease in own}
        devices += bubble.split(
            own, [i for i in found if i.lease_id in held], commands.get(number, []), pauses.get(number, []), window
        )
    account = bubble.account(devices, window)
    shown = ("no", "id", "key", "name", "web_url", "agents")
    return {
        "window": [window.since, window.until],
        "devices": [_visible(row, known) for row in device_rows(devices, found, window)],
        "idle_devices": [
            {"device_id": row["id"], "node": row["node"], "state": row["state"], "pool": row["pool"]}
            for row in machines
            if row["id"] not in {lease.device_id for lease in leases}
        ],
        "runs": [{name: row[name] for name in shown} for _, row in sorted(known.items())],
        "bubble": {**account, "devices": []},
        "pools": sorted({row["pool"] for row in every}),
    }


def _visible(row: dict[str, Any], known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Take policies and causes out of what belongs to a run the caller may not read."""
    run = known.get(row["run_no"])
    if run is not None:
        return {**row, "run_key": run["key"]}
    return {
        **row,
        "run_key": "",
        "intervals": [[t0, t1, phase, ""] for t0, t1, phase, _ in row["intervals"]],
        "idle": [],
    }
