"""Runs a Dramatiq worker process: `python -m workers.run --role device|rollout|reward`.

The device role consumes `device.<id>` of this node's devices, one message per queue at a time; the rollout role
consumes `rollout.<pool>` and, with threads of its own, `reward.<pool>`; the reward role consumes the latter alone, so
that rewards scale apart from play. SIGTERM and SIGINT end it within seconds: hosts let go of their leases, what is
played or computed is dropped and taken again by whoever comes.
"""

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import psycopg
import structlog
from dramatiq.asyncio import get_event_loop_thread
from dramatiq.worker import Worker

from flexmarl.contracts.wake_words import held_word
from flexmarl.host.exits import carry_out, refuse
from flexmarl.host.output import protect
from flexmarl.host.stopping import when_told_to_stop
from flexmarl.store.control import commands, leases
from flexmarl.store.control.heartbeat import Heartbeat
from flexmarl.store.data import rewards
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.errors import SchemaMismatch
from workers import actors, reporting, settings
from workers.broker import POLL_MS, PromptBroker
from workers.children import child_environment
from workers.database import StorePool
from workers.door.broker import DoorBroker
from workers.entry import end_waiting, entry, settled
from workers.errors import NotAdmitted, SettingsError
from workers.external_access import ExternalAccess
from workers.forking import ForkServerThread
from workers.hosting_signals import Shutdown
from workers.programs import IMPORTED, QUIET, confined
from workers.rewards.base import ACTOR, QUEUE
from workers.rewards.scorer import Scorer
from workers.rollout.gateway.images import Images
from workers.rollout.gateway.server import GatewayPlace
from workers.rollout.player import Player
from workers.settings import Settings

log = structlog.get_logger(__name__)

HOSTING_STOP_S = 8.0
PLAYING_STOP_S = 1.0
"""How long rollout commands may go on after SIGTERM; one that needs longer is played again elsewhere."""
DEVICES_POLL_S = 0.5
_STARTED = time.monotonic()
SHARERS = 2
"""Leases that a device may have at a time: an engine's, and that of a trainer which shares it."""


STUCK_S = 60.0
"""A consumer asks its queue twice a second, with time limits: one that has not for so long is stuck."""
EVENTS_STUCK_S = 120.0
"""The event loop also runs environments and rewards that people wrote; one of their calls may hold it for a while."""


Broker = PromptBroker | DoorBroker


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """What every role of this process shares."""

    config: Settings
    pool: StorePool
    stopping: threading.Event
    heartbeat: Heartbeat
    refusals: list[str] = field(default_factory=list)
    """Why the node token holds no more."""

    def broker(self, role: str, *, own_loop: bool = True) -> Broker:
        """Return a broker of a role whose consumers show that they move."""

        def watch(queue: str) -> Callable[[], None]:
            return self.heartbeat.watch(f"consumer of {queue}", STUCK_S)

        if self.config.door is not None:
            return DoorBroker(self.config.door, role, self.refused, own_loop=own_loop, watch=watch)
        return PromptBroker(self.config.redis_url, own_loop=own_loop, watch=watch)

    def refused(self, why: str) -> None:
        """End the process: its node has no business here any more."""
        self.refusals.append(why)
        self.stopping.set()

    def follow_events(self) -> Future[None]:
        """Show that the event loop of async actors turns, until what is returned is cancelled."""
        thread = get_event_loop_thread()
        assert thread is not None
        following = self.heartbeat.follow("event loop", EVENTS_STUCK_S)
        return asyncio.run_coroutine_threadsafe(following, thread.loop)


def main() -> None:
    """Run the role until a signal ends it."""
    parser = argparse.ArgumentParser(prog="python -m workers.run", description=__doc__)
    parser.add_argument("--role", choices=tuple(ROLES), required=True)
    role = parser.parse_args().role
    reporting.configure(f"{role}-worker")
    stopping = threading.Event()
    try:
        config = settings.load()
        when_told_to_stop(partial(_stop, config, stopping))
        config = settled(config, stopping)
        heartbeat = Heartbeat(role, node=config.node, place=config.place, descriptor=config.heartbeat_descriptor)
        heartbeat.start()
        if role == "reward" and not config.reward_tasks:
            raise SettingsError("FLEXMARL_REWARD_TASKS is '0'; a reward worker computes 1 at a time or more")
        way = entry(config, f"flexmarl {role} worker")
    except SettingsError as error:
        refuse(f"{role} worker: {error}")
    except SchemaMismatch as error:
        sys.exit(f"{role} worker: {error}")
    heartbeat.report(way.connect)
    shipper = reporting.ship(way.connect, role, config.node)
    with way.pool as pool:
        process = WorkerProcess(config, pool, stopping, heartbeat)
        try:
            ROLES[role](process)
        except NotAdmitted as refused:
            process.refused(str(refused))
        except psycopg.OperationalError:
            if not stopping.is_set():  # otherwise it is what nobody waited for any more
                raise
    shipper.stop()
    heartbeat.stop()
    if process.refusals:
        refuse(f"{role} worker: {process.refusals[0]}")


def _stop(config: Settings, stopping: threading.Event) -> None:
    stopping.set()
    end_waiting(config)


def run_device(process: WorkerProcess) -> None:
    """Host leases of this node's devices."""
    config, pool = process.config, process.pool
    forks = _start_fork_server(config)
    devices = _await_devices(config, pool, process.stopping)
    if not devices:
        return
    broker, shutdown = process.broker("device"), Shutdown()
    actors.register_hosting(broker, config, pool, shutdown, forks)
    queues = [f"device.{device}" for device in devices]
    worker = _start(broker, queues, threads=SHARERS * len(devices), prefetch=SHARERS)
    _take_over(broker, pool, config.holder("device"))
    process.stopping.wait()
    shutdown.request()
    worker.stop(timeout=int(HOSTING_STOP_S * 1000))
    log.info("stopped")


def _start_fork_server(config: Settings) -> ForkServerThread | None:
    """Begin to import what children need, where the system can fork them."""
    if not hasattr(os, "pidfd_open"):
        return None
    forks = ForkServerThread(IMPORTED, child_environment({**confined(config.child_threads), **QUIET}))
    forks.start()
    return forks


def run_rollout(process: WorkerProcess) -> None:
    """Play episode groups of a pool."""
    config, pool = process.config, process.pool
    folder = SegmentFolder(config.payloads, config.payload_by_value_bytes)
    access = ExternalAccess(config.external_hosts, config.secrets)
    broker = process.broker("rollout")
    place = GatewayPlace(config.gateway_bind, config.advertise_host, config.gateway_url)
    images = Images(config.containers)
    others = access, broker.push, config.home, place, images, config.exchange
    player = Player(pool, folder, config.holder("rollout"), *others)
    actors.register_playing(broker, player)
    broker.hints.when(held_word(config.rollout_pool), player.look)
    limit = config.rollout_commands
    worker = _start(broker, [f"rollout.{config.rollout_pool}"], threads=limit, prefetch=limit)
    _take_over(broker, pool, config.holder("rollout"))
    scoring = _start_scoring(process, own_loop=False) if config.reward_tasks else None
    following = process.follow_events()
    process.stopping.wait()
    following.cancel()
    _drop([worker] if scoring is None else [scoring, worker])
    log.info("stopped")


def run_reward(process: WorkerProcess) -> None:
    """Compute rewards of a pool."""
    worker = _start_scoring(process)
    following = process.follow_events()
    process.stopping.wait()
    following.cancel()
    _drop([worker])
    log.info("stopped")


def _start_scoring(process: WorkerProcess, *, own_loop: bool = True) -> Worker:
    """Consume the queue of rewards, for which plays wait with every thread of their own worker."""
    config, pool = process.config, process.pool
    broker = process.broker("reward", own_loop=own_loop)
    access = ExternalAccess(config.external_hosts, config.secrets)
    holder = config.holder("reward")
    actors.register_scoring(broker, Scorer(pool, access, holder))
    queue = f"{QUEUE}.{config.rollout_pool}"
    worker = _start(broker, [queue], threads=config.reward_tasks, prefetch=config.reward_tasks)
    with pool.connection() as conn:
        reopened = rewards.reopen_of(conn, holder)
    for run_id, no in reopened:
        broker.push(queue, ACTOR, run_id, no)
    return worker


def _drop(running: list[Worker]) -> None:
    """Stop workers, together; what their event loop still works on a little later is dropped."""
    thread = get_event_loop_thread()
    assert thread is not None
    dropping = threading.Timer(PLAYING_STOP_S, thread.loop.call_soon_threadsafe, [_drop_work, thread.loop])
    dropping.start()
    limit = int((PLAYING_STOP_S + 3.0) * 1000)
    ending = [threading.Thread(target=worker.stop, kwargs={"timeout": limit}) for worker in running]
    for one in ending:
        one.start()
    for one in ending:
        one.join()
    dropping.cancel()


def _start(broker: Broker, queues: list[str], threads: int, prefetch: int) -> Worker:
    worker = Worker(broker, queues=set(queues), worker_timeout=POLL_MS, worker_threads=threads)
    worker.queue_prefetch = prefetch
    worker.start()
    for name in queues:
        broker.declare_queue(name)
    broker.begin()
    log.info("consuming", queues=queues)
    return worker


def _take_over(broker: Broker, pool: StorePool, holder: str) -> None:
    """Go on with what the process held that was in this place before."""
    if not holder:
        return
    with pool.connection() as conn:
        reopened = commands.reopen_of(conn, holder)
    if reopened:
        log.info("taken over", holder=holder, commands=[command.no for command in reopened])
    for command in reopened:
        broker.push(command.queue, command.kind, command.run_id, command.no)


def _await_devices(config: Settings, pool: StorePool, stopping: threading.Event) -> list[str]:
    """Wait until the node agent has registered this machine: what is there of a former one may be other devices."""
    waiting = False
    while not stopping.is_set():
        with pool.connection() as conn:
            found = [device.id for device in leases.devices_of(conn, config.node, time.monotonic() - _STARTED)]
        if found:
            return found
        if not waiting:
            log.info("waiting for the node agent to register devices", node=config.node)
        waiting = True
        stopping.wait(DEVICES_POLL_S)
    return []


def _drop_work(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


ROLES = {"device": run_device, "rollout": run_rollout, "reward": run_reward}

if __name__ == "__main__":
    protect()
    carry_out(main)
