"""The loop that keeps a pool's hosts: look at their jobs, note what became of them, cancel, decide, submit.

Invariants. One process does it at a time: the session that holds the advisory lock. A row is committed before its job
is submitted, and every round looks for jobs by the names of all rows before it submits one: a job that was submitted
by a process that was killed before it could note that is found, not submitted again; of two jobs of one name the later
is cancelled, and does nothing before that, since a job must own its row to work. What a provider did not answer has no
consequence: nothing ends because nobody knows. The node token of a job that has ended is revoked at the beginning of
the next round, hence before a host of the same name is submitted.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf

import structlog
from psycopg import Connection

from flexmarl.contracts.providers import GrowingProvider
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.inventory import node_tokens
from flexmarl.controlplane.inventory.models import Pool
from flexmarl.controlplane.inventory.providers import (
    HostProvider,
    HostRequest,
    HostSighting,
    ProviderRefused,
    ProviderSilent,
    options_of,
    provider_of,
    source_of,
)
from flexmarl.controlplane.inventory.providers.host_folders import last_words
from flexmarl.controlplane.runs.pool_look import PoolLook, look
from flexmarl.controlplane.runs.providing.scaling import HostShape, hosts_wanted
from flexmarl.store.control import host_jobs
from flexmarl.store.control.host_jobs import TIME_LIMIT, HostJob

log = structlog.get_logger(__name__)

REGISTERS_S = 300.0
"""A host that runs for so long without its node agent is given up."""
FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 600.0
_ACTOR = Actor.system("provider")
_AT_WORK = frozenset({"running", "leaving"})


def retry_s(failures: int) -> float:
    """Return how long to wait after so many failures one after the other."""
    return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** max(0, min(failures, 10) - 1))


class Providing:
    """One process that keeps the hosts of all pools."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._silent: dict[str, str] = {}
        """Cluster -> why it did not answer last time."""

    def owns(self) -> bool:
        """Become the one that provides, or say that another process does."""
        return host_jobs.try_to_provide(self._conn)

    def round(self) -> bool:
        """Do what there is to do now; whether anything changed."""
        jobs = host_jobs.open_jobs(self._conn)
        node_tokens.revoke_ended(_ACTOR, [job.id for job in jobs])
        options = {pool.name: options_of(pool.provider) for pool in Pool.objects.all()}
        pools = {name: kept for name, kept in options.items() if isinstance(kept, GrowingProvider)}
        if not (jobs or pools):
            return False
        before = [(job.id, job.state, job.reason) for job in jobs]
        sources: dict[str, list[HostJob]] = {}
        for job in jobs:
            sources.setdefault(source_of(job.options), []).append(job)
        for source, own in sorted(sources.items()):
            self._settle(provider_of(own[0].options), source, own)
        jobs = host_jobs.open_jobs(self._conn)
        seen = look(self._conn, always=True)
        for name in sorted({*pools, *(job.pool for job in jobs)}):
            own = [job for job in jobs if job.pool == name]
            if not self._silent.keys() & {source_of(job.options) for job in own}:
                self._size(name, pools.get(name), own, seen)
        changed = [(job.id, job.state, job.reason) for job in host_jobs.open_jobs(self._conn)] != before
        if changed:
            live.announce(live.CLUSTER, 0)
        return changed

    # Jobs ------------------------------------------------------------------------------------------------------------

    def _settle(self, provider: HostProvider, source: str, jobs: Sequence[HostJob]) -> None:
        """Bring the rows of one cluster's jobs up to what it says, then cancel and submit."""
        try:
            seen = provider.look([request_of(job) for job in jobs])
            self._silent.pop(source, None)
        except ProviderSilent as silent:
            self._hear_nothing(source, jobs, silent)
            return
        for job in jobs:
            sightings = seen.get(job.name, [])
            own = next((one for one in sightings if one.native == job.native), None)
            if own is None and not job.native:
                own = next(iter(sightings), None)
                if own is not None:
                    host_jobs.submitted(self._conn, job.id, own.native)
                    log.info("found", job=job.name, native=own.native)
            for other in sightings:
                if own is not None and other is not own and other.state in ("pending", "running"):
                    self._try(partial(provider.cancel, other.native))
            self._note(provider, job, own)

    def _note(self, provider: HostProvider, job: HostJob, own: HostSighting | None) -> None:
        if own is None and job.native:
            host_jobs.ended(self._conn, job, "ended", f"{job.provider} no longer knows job {job.native}")
        elif own is None:
            self._submit(provider, job)
        elif own.state in ("ended", "failed"):
            never = job.unwanted and not job.node_state and _overdue(job)
            state = "failed" if never else own.state
            host_jobs.ended(self._conn, job, state, _why_ended(job, own))
            log.info("ended", job=job.name, native=own.native, state=own.state, reason=own.reason)
        else:
            self._follow(provider, job, own)

    def _follow(self, provider: HostProvider, job: HostJob, own: HostSighting) -> None:
        """Note what is said of a job that has not ended, and do what is next."""
        state = "pending" if own.state == "pending" else "running"
        host_jobs.seen(self._conn, job.id, state, own.reason, own.place, own.started_at)
        if own.state == "ending":
            return
        if job.unwanted:
            self._try(partial(provider.cancel, own.native))
        elif job.state == "leaving" and job.node_state in ("ready", "cordoned"):
            host_jobs.drain(self._conn, job.node, job.leaving_at)
        elif job.state == "running" and own.ends_at is not None and own.ends_at - job.now < _notice_s(job):
            # Slurm's own notice to the job was lost, or is late; Ray gives none to it.
            host_jobs.leave(self._conn, job.id, own.ends_why or TIME_LIMIT, own.ends_at)

    def _submit(self, provider: HostProvider, job: HostJob) -> None:
        if job.unwanted:
            host_jobs.ended(self._conn, job, "ended", job.why)
            return
        if not job.due:
            return
        try:
            native = provider.submit(_with_token(request_of(job)))
        except ProviderRefused as refused:
            host_jobs.refused(self._conn, job.id, refused.words, refused.next_step, retry_s(job.tries + 1))
            log.warning("refused", job=job.name, reason=refused.words)
        except ProviderSilent as silent:
            self._hear_nothing(source_of(job.options), [job], silent)
        else:
            host_jobs.submitted(self._conn, job.id, native)
            log.info("submitted", job=job.name, native=native, node=job.node)

    def _try(self, call: "partial[None]") -> None:
        try:
            call()
        except ProviderSilent as silent:
            log.warning("provider_silent", reason=str(silent))

    def _hear_nothing(self, source: str, jobs: Sequence[HostJob], silent: ProviderSilent) -> None:
        words = str(silent)
        if self._silent.get(source) != words:
            log.warning("provider_silent", provider=source, reason=words)
        self._silent[source] = words
        host_jobs.unheard(self._conn, [job.id for job in jobs], words, silent.next_step)

    # Sizes -----------------------------------------------------------------------------------------------------------

    def _size(self, pool: str, options: GrowingProvider | None, jobs: Sequence[HostJob], seen: PoolLook) -> None:
        """Ask for hosts that are wanted, and give back those that are not."""
        staying = [job for job in jobs if job.state != "leaving" and not job.unwanted]
        if options is None:
            for job in staying:
                self._give_back(job, "the pool has no provider any more")
            self._empty(jobs)
            return
        asked = options.model_dump(mode="json")
        for job in jobs:
            if job.state == "refused" and job.options != asked:
                host_jobs.revise(self._conn, job.id, asked)
        starting = [job for job in staying if not job.node_state]
        room = max(0, options.max_nodes - len(staying))
        shape = HostShape(pool, options.kind, options.offered, options.offered == options.devices)
        wanted = hosts_wanted(seen, shape, room + len(starting))
        lacking = max(wanted - len(starting), options.min_nodes - len(staying))
        failures, ago = host_jobs.failures(self._conn, pool)
        if (
            lacking > 0
            and not any(job.state == "refused" for job in jobs)
            and (not failures or ago > retry_s(failures))
        ):
            waits = sum(pool in {demand.pool, demand.trainer_pool} for demand in seen.demands)
            why = f"{waits} request{'s' * (waits != 1)} for devices wait{'s' * (waits == 1)}" if wanted else "min_nodes"
            for _ in range(min(lacking, room)):
                node = host_jobs.ask(self._conn, uuid7(), pool, asked, why)
                log.info("asked", pool=pool, node=node, why=why)
        self._release(options, staying, max(0, len(starting) - wanted), wanted > 0)
        self._empty(jobs)

    def _release(self, options: GrowingProvider, staying: Sequence[HostJob], superfluous: int, waited: bool) -> None:
        """Give back hosts that nobody has used for a while, and jobs that wait in vain, down to `min_nodes`.

        While somebody waits for a further host, those that are free may be what is to be used with it.
        """
        spare = len(staying) - options.min_nodes
        for job in sorted(staying, key=lambda one: (one.state != "refused", one.state != "pending", one.requested_at)):
            free = job.node_state == "ready" and not job.leases and not waited
            unused = free or (not job.node_state and superfluous > 0)
            if not job.node_state:
                superfluous -= 1
            host_jobs.idle(self._conn, job.id, unused)
            idle_s = job.now - job.idle_since if unused and job.idle_since is not None else 0.0
            if spare > 0 and (idle_s > options.idle_s or (unused and job.state == "refused")):
                self._give_back(job, f"nobody needed it for {idle_s:.0f} s")
                spare -= 1

    def _give_back(self, job: HostJob, why: str) -> None:
        """Empty a host, then cancel its job; one that has not begun is cancelled at once."""
        if job.node_state:
            host_jobs.leave(self._conn, job.id, why, None)
        else:
            host_jobs.unwant(self._conn, job.id, why)

    def _empty(self, jobs: Sequence[HostJob]) -> None:
        """Cancel jobs whose host is empty and to stay so, and those whose host never came."""
        for job in jobs:
            if job.unwanted or job.state not in _AT_WORK:
                continue
            drained = job.node_state == "draining" and not job.leases
            if drained:
                host_jobs.unwant(self._conn, job.id, job.why if job.state == "leaving" else "its node is drained")
            elif not job.node_state and _overdue(job):
                said = last_words(job.node, job.native)
                why = f"its node agent did not register within {REGISTERS_S:.0f} s"
                host_jobs.unwant(self._conn, job.id, f"{why}: {said}" if said else why)


def _overdue(job: HostJob) -> bool:
    return job.started_at is not None and job.now - job.started_at > REGISTERS_S


def _notice_s(job: HostJob) -> float:
    """Return how long before its end a host is drained; one whose provider has no such option at once."""
    return float(job.options.get("notice_s", inf))


def _why_ended(job: HostJob, own: HostSighting) -> str:
    """Return why a job ended: the provider's words, with what its host said last, and what was done to it."""
    if own.state != "failed":
        return own.reason
    said = last_words(job.node, own.native)
    revoked = "its node token was revoked" if not job.unwanted and node_tokens.is_revoked(job.id) else ""
    return ": ".join(words for words in (own.reason, "" if said in own.reason else said, revoked) if words)


def _with_token(asked: HostRequest) -> HostRequest:
    """Give a request the token of its host, where it has one. Raises ProviderRefused where it can have none."""
    if not asked.has_token:
        return asked
    try:
        return replace(asked, token=node_tokens.for_job(_ACTOR, asked.id, asked.node, asked.pool))
    except ProblemError as problem:
        raise ProviderRefused(str(problem), "Change that, or give the pool another name.") from None


def request_of(job: HostJob) -> HostRequest:
    """Return what a provider is asked for."""
    at_work = job.state in _AT_WORK
    return HostRequest(job.id, job.name, job.node, job.pool, job.options, job.native, at_work, job.unwanted)
