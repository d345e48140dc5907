"""Devices between runs: every driver computes the same answer and carries out what concerns its own runs.

Invariant: a grant is one transaction under the run's fence; a unique index decides when two drivers saw the same free
device, and the loser looks again. Priorities, quotas, weights and bindings are read from the store at every look. A
recall is a fact in the run's inbox under a key made of the request that was not met, so it is told once, whoever looks.
"""

from collections.abc import Mapping

import structlog
from psycopg import Connection

from flexmarl.contracts.events import GangRecalled, SurplusRecalled
from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.controlplane.runs.pool_look import PoolLook, look
from flexmarl.orchestrator.pool import recalls, surplus
from flexmarl.orchestrator.pool.arbiter import Arbitration, arbitrate
from flexmarl.orchestrator.pool.device_requests import JOIN, REPLACE
from flexmarl.orchestrator.pool.wording import in_words
from flexmarl.store.control import inbox, leases

log = structlog.get_logger(__name__)


def wants_devices(session: RunSession) -> bool:
    """Tell whether a run's request for devices is unanswered."""
    waiting = session.core.state.outstanding
    return waiting.any_of("devices") or waiting.any_of(REPLACE.removesuffix(":"))


def may_grow(session: RunSession) -> bool:
    """Tell whether a run would use another engine. Nothing waits for it, so it is looked at less often."""
    return session.core.state.outstanding.any_of(JOIN)


def has_surplus(session: RunSession) -> bool:
    """Tell whether a run may hold engines that it can do without: others' requests are looked at for it."""
    engines = session.core.plan.engines
    return engines.most > engines.least


def grant_devices(conn: Connection, sessions: Mapping[int, RunSession]) -> tuple[set[int], set[int]]:
    """Serve the waiting runs; returns the runs that have a new fact, and those whose explanation changed."""
    seen = look(conn)
    if not seen.demands:
        return set(), set()
    result = arbitrate(seen.demands, seen.free, seen.rules)
    granted, explained = set(), set()
    for grant in result.grants:
        session = sessions.get(grant.run_id)
        if session is None:
            continue  # another driver's run, and its grant to make
        placements = [(placement.device_id, placement.use) for placement in grant.placements]
        memory = {placement.device_id: placement.memory for placement in grant.placements if placement.memory}
        if leases.grant(conn, session.lease, grant.command_no, placements, memory) is not None:
            granted.add(grant.run_id)
            log.info("devices_granted", run_id=grant.run_id, devices=[device for device, _ in placements])
    if not granted:
        granted = _call_back(conn, sessions, seen, result) or _recall(conn, sessions, seen, result)
    extra = {(demand.run_id, demand.command_no) for demand in seen.demands if demand.extra}
    for waiting in result.waiting:
        if (waiting.run_id, waiting.command_no) in extra:
            continue  # the run lacks nothing
        session = sessions.get(waiting.run_id)
        if session is not None and session.explain(conn, in_words(waiting.requirement)):
            explained.add(waiting.run_id)
    return granted, explained


def _call_back(conn: Connection, sessions: Mapping[int, RunSession], seen: PoolLook, result: Arbitration) -> set[int]:
    """Tell runs of this driver to let engines above their minimum leave; returns those that were told."""
    told = set()
    for leave in surplus.leaves(seen.demands, result, seen.free, seen.rules, seen.surplus):
        if leave.run_id not in sessions:
            continue
        event = SurplusRecalled(lease_id=leave.lease_id, reason=surplus.in_words(leave))
        key = f"surplus-recalled:{leave.lease_id}:{leave.for_run}:{leave.for_command}"
        if inbox.put_event(conn, leave.run_id, key, event):
            told.add(leave.run_id)
            log.info("surplus_recalled", run_id=leave.run_id, lease_id=leave.lease_id, for_run=leave.for_run)
    return told


def _recall(conn: Connection, sessions: Mapping[int, RunSession], seen: PoolLook, result: Arbitration) -> set[int]:
    """Tell runs of this driver to give a part of a gang back; returns those that were told."""
    recalled = set()
    for recall in recalls.recalls(seen.demands, result, seen.free, seen.rules):
        if recall.run_id not in sessions:
            continue
        event = GangRecalled(command_no=recall.command_no, reason=recalls.in_words(recall))
        if inbox.put_event(conn, recall.run_id, f"gang-recalled:{recall.command_no}", event):
            recalled.add(recall.run_id)
            log.info("gang_recalled", run_id=recall.run_id, for_run=recall.for_run, pool=recall.pool)
    return recalled
