"""Agents of a run: who they are, what they were last measured at, and which devices work for them.

A figure is the last point of the series it names; a device works for an agent when it ran its policy inside the window.
What was never measured is null.
"""

from collections.abc import Mapping
from typing import Any

from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import PolicyVersion, Run
from flexmarl.controlplane.runs.queries import run_detail
from flexmarl.controlplane.telemetry.timeline.windows import window_of
from flexmarl.store.reads import activity
from flexmarl.store.telemetry import intervals, metrics

WINDOW_S = 300.0
VERSIONS = 50
FIGURES: dict[str, tuple[str, str, bool]] = {
    "reward": ("reward/agent", "mean", False),
    "tokens_per_s": ("throughput/tokens", "mean", False),
    "response_tokens": ("length/response", "mean", False),
    "entropy": ("train/entropy", "mean", True),
    "loss": ("train/loss", "mean", True),
    "kl_engine": ("train/kl_engine", "mean", True),
    "clipped": ("train/clipped", "share", True),
    "staleness": ("staleness/own_max", "max", True),
}
"""Member -> (series, stat, whether it is kept per policy)."""


def agents(run: Run, detail: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """List a run's agents in the order of the environment's seats."""
    row = detail or run_detail(run)
    last = {(s.name, s.agent, s.stat): s.last for s in metrics.catalogue(store_connection(), run.no)}
    newest, first = _newest(run), _first(run)
    busy = _busy(run)
    return [_row(run, agent, last, newest, first, busy) for agent in row["agents"]]


def agent(run: Run, role: str, detail: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return one agent with the newest versions of its policy. Raises NotFound."""
    found = next((row for row in agents(run, detail) if row["role"] == role), None)
    if found is None:
        raise NotFound(f"The run has no agent {role}. Its agents: {', '.join(run.spec['agents'])}.")
    rows = PolicyVersion.objects.filter(run_id=run.no, policy=found["policy"]).order_by("-version")[:VERSIONS]
    return {**found, "versions": [_version(row) for row in rows]}


def _row(
    run: Run,
    agent: Mapping[str, Any],
    last: Mapping[tuple[str, str, str], float],
    newest: Mapping[str, PolicyVersion],
    first: Mapping[str, Mapping[str, Any]],
    busy: Mapping[str, Mapping[str, list[str]]],
) -> dict[str, Any]:
    policy = agent["policy"]
    version = newest.get(policy)
    figures = {
        member: last.get((name, policy if by_policy else agent["role"], stat))
        for member, (name, stat, by_policy) in FIGURES.items()
    }
    return {
        "role": agent["role"],
        "policy": policy,
        "trainable": agent["trainable"],
        "hue": agent["hue"],
        "monogram": agent["monogram"],
        "model": run.spec["policies"].get(policy, {}).get("model"),
        "tuning": run.spec["policies"].get(policy, {}).get("tuning"),
        "parameters": first.get(policy, {}).get("parameters"),
        "version": version.version if version else None,
        "version_at": rfc3339(version.at) if version else None,
        "digest": version.digest if version else None,
        **figures,
        "engines": busy.get(policy, {}).get("engine", []),
        "trainers": busy.get(policy, {}).get("trainer", []),
        "url": f"/api/v1/runs/{run.id}/agents/{agent['role']}",
        "web_url": f"/runs/{run.key}/metrics/agents/{agent['role']}",
    }


def _newest(run: Run) -> dict[str, PolicyVersion]:
    rows = PolicyVersion.objects.filter(run_id=run.no).order_by("policy", "-version").distinct("policy")
    return {row.policy: row for row in rows}


def _first(run: Run) -> dict[str, Mapping[str, Any]]:
    """Facts that the trainer told when it made the policy."""
    rows = PolicyVersion.objects.filter(run_id=run.no).order_by("policy", "version").distinct("policy")
    return {row.policy: row.facts for row in rows}


def _busy(run: Run) -> dict[str, dict[str, list[str]]]:
    """Policy -> use -> devices that worked for it inside the window."""
    conn, window = store_connection(), window_of(run, WINDOW_S)
    worked: dict[int, set[str]] = {}
    for interval in intervals.between(conn, run.no, window.since, window.until):
        worked.setdefault(interval.lease_id, set()).add(interval.policy)
    found: dict[str, dict[str, list[str]]] = {}
    for lease in activity.leases_between(conn, [run.no], window.since, window.until):
        for policy in worked.get(lease.lease_id, set()) - {""}:
            names = found.setdefault(policy, {}).setdefault(lease.use, [])
            if lease.device_id not in names:
                names.append(lease.device_id)
    return found


def _version(row: PolicyVersion) -> dict[str, Any]:
    return {
        "policy": row.policy,
        "version": row.version,
        "parent": row.parent,
        "digest": row.digest,
        "durable": bool(row.state),
        "facts": row.facts,
        "created_at": rfc3339(row.at),
    }
