"""Devices between runs: every driver computes the same answer and carries out the grants of its own runs.

Invariant: a grant is one transaction under the run's fence; a unique index decides when two drivers saw the same free
device, and the loser looks again. Priorities, quotas and bindings are read from the store at every look.
"""

from collections.abc import Mapping

import structlog
from psycopg import Connection

from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.controlplane.runs.pool_look import look
from flexmarl.orchestrator.pool_arbiter import arbitrate
from flexmarl.orchestrator.pool_words import in_words
from flexmarl.orchestrator.pools import REPLACE
from flexmarl.store import leases

log = structlog.get_logger(__name__)


def wants_devices(session: RunSession) -> bool:
    """Tell whether a run's request for devices is unanswered."""
    waiting = session.core.state.outstanding
    return waiting.any_of("devices") or waiting.any_of(REPLACE.removesuffix(":"))


def grant_devices(conn: Connection, sessions: Mapping[int, RunSession]) -> tuple[set[int], set[int]]:
    """Serve the waiting runs; returns the runs that got devices, and those whose explanation changed."""
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
        if leases.grant(conn, session.lease, grant.command_no, placements) is not None:
            granted.add(grant.run_id)
            log.info("devices_granted", run_id=grant.run_id, devices=[device for device, _ in placements])
    for waiting in result.waiting:
        session = sessions.get(waiting.run_id)
        if session is not None and session.explain(conn, in_words(waiting.requirement)):
            explained.add(waiting.run_id)
    return granted, explained
