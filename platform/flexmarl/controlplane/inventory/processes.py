"""What others read of the platform's own processes: which of them report that they live, and which do not."""

from datetime import UTC, datetime
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.store.control import process_heartbeats
from flexmarl.store.control.process_heartbeats import ProcessState

NAMES = {
    "web": "Web process",
    "driver": "Driver",
    "simulations": "Simulation process",
    "provide": "Provider of hosts",
    "node": "Node agent",
    "device": "Device worker",
    "rollout": "Rollout worker",
    "reward": "Reward worker",
}
COMMANDS = {
    "web": "manage.py serve",
    "driver": "manage.py drive",
    "simulations": "manage.py simulations",
    "provide": "manage.py provide",
    "node": "python -m workers.node",
    **{role: f"python -m workers.run --role {role}" for role in ("device", "rollout", "reward")},
}
CONSEQUENCES = {
    "driver": "no run makes progress and no action is carried out",
    "simulations": "simulations and predictions wait",
    "provide": "pools get no new hosts, and idle ones are not given back",
    "node": "commands to engines and trainers of its host wait",
    "device": "no engine or trainer is started or restarted on its host",
    "rollout": "its episodes are replayed elsewhere",
    "reward": "its rewards are computed again elsewhere",
}
"""While a process of the kind is away and no other stands in for it."""


def processes() -> list[dict[str, Any]]:
    """All processes that report, or did until lately; those that do not come first."""
    found = process_heartbeats.processes(store_connection())
    return [_row(process) for process in sorted(found, key=lambda process: process.state == "running")]


def _row(process: ProcessState) -> dict[str, Any]:
    return {
        "kind": process.kind,
        "name": NAMES.get(process.kind, process.kind),
        "node": process.node,
        "pid": process.pid,
        "state": process.state,
        "detail": process.text,
        "consequence": CONSEQUENCES.get(process.kind, ""),
        "command": COMMANDS.get(process.kind, ""),
        "silent_s": process.silent_s,
        "started_at": rfc3339(datetime.fromtimestamp(process.started_at, UTC)),
    }
