"""Runs a Dramatiq worker process: `python -m workers.run --role device|rollout`.

The device role consumes `device.<id>` of this node's devices, one message per queue at a time; the rollout role
consumes `rollout.<pool>`. SIGTERM and SIGINT end it within seconds: hosts let go of their leases, rollout commands are
dropped and taken again by whoever comes.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import threading

import structlog
from dramatiq.asyncio import get_event_loop_thread
from dramatiq.worker import Worker

from flexmarl.store import commands, leases
from flexmarl.store.errors import SchemaMismatch
from flexmarl.store.segments import SegmentFolder
from workers import actors, reporting, settings
from workers.broker import POLL_MS, Heartbeat, PromptBroker
from workers.database import Pool, open_pool
from workers.errors import SettingsError
from workers.hosting import Shutdown
from workers.rollout.external import ExternalAccess
from workers.rollout.player import Player
from workers.settings import Settings

log = structlog.get_logger(__name__)

HOSTING_STOP_S = 8.0
PLAYING_STOP_S = 1.0
"""How long rollout commands may go on after SIGTERM; one that needs longer is played again elsewhere."""
DEVICES_POLL_S = 0.5


def main() -> None:
    """Run the role until a signal ends it."""
    parser = argparse.ArgumentParser(prog="python -m workers.run", description=__doc__)
    parser.add_argument("--role", choices=("device", "rollout"), required=True)
    role = parser.parse_args().role
    reporting.configure(f"{role}-worker")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        config = settings.load()
        pool = open_pool(config.database_url, f"flexmarl {role} worker", size=2)
    except (SettingsError, SchemaMismatch) as error:
        sys.exit(f"{role} worker: {error}")
    shipper = reporting.ship(config.database_url, role, config.node)
    with pool:
        (run_device if role == "device" else run_rollout)(config, pool, stopping)
    shipper.stop()


def run_device(config: Settings, pool: Pool, stopping: threading.Event) -> None:
    """Host leases of this node's devices."""
    devices = _await_devices(config, pool, stopping)
    if not devices:
        return
    broker, shutdown = PromptBroker(config.redis_url), Shutdown()
    actors.register_hosting(broker, config, pool, shutdown)
    worker = _start(broker, [f"device.{device}" for device in devices], threads=len(devices), prefetch=1)
    _take_over(broker, pool, config.holder("device"))
    stopping.wait()
    shutdown.request()
    worker.stop(timeout=int(HOSTING_STOP_S * 1000))
    log.info("stopped")


def run_rollout(config: Settings, pool: Pool, stopping: threading.Event) -> None:
    """Play episode groups of a pool."""
    folder = SegmentFolder(config.payloads, config.payload_by_value_bytes)
    access = ExternalAccess(config.external_hosts, config.secrets)
    broker, player = PromptBroker(config.redis_url), Player(pool, folder, config.holder("rollout"), access)
    actors.register_playing(broker, player)
    limit = config.rollout_commands
    worker = _start(broker, [f"rollout.{config.rollout_pool}"], threads=limit, prefetch=limit)
    _take_over(broker, pool, config.holder("rollout"))
    stopping.wait()
    thread = get_event_loop_thread()
    assert thread is not None
    dropping = threading.Timer(PLAYING_STOP_S, thread.loop.call_soon_threadsafe, [_drop_work, thread.loop])
    dropping.start()
    worker.stop(timeout=int((PLAYING_STOP_S + 3.0) * 1000))
    dropping.cancel()
    log.info("stopped")


def _start(broker: PromptBroker, queues: list[str], threads: int, prefetch: int) -> Worker:
    worker = Worker(broker, queues=set(queues), worker_timeout=POLL_MS, worker_threads=threads)
    worker.queue_prefetch = prefetch
    worker.start()
    for name in queues:
        broker.declare_queue(name)
    broker.hints.start()
    Heartbeat(broker).start()
    log.info("consuming", queues=queues)
    return worker


def _take_over(broker: PromptBroker, pool: Pool, holder: str) -> None:
    """Go on with what the process held that was in this place before."""
    if not holder:
        return
    with pool.connection() as conn:
        reopened = commands.reopen_of(conn, holder)
    if reopened:
        log.info("taken over", holder=holder, commands=[command.no for command in reopened])
    for command in reopened:
        broker.push(command.queue, command.kind, command.run_id, command.no)


def _await_devices(config: Settings, pool: Pool, stopping: threading.Event) -> list[str]:
    """Wait until the node agent has registered this machine."""
    waiting = False
    while not stopping.is_set():
        with pool.connection() as conn:
            found = [device.id for device in leases.devices_of(conn, config.node)]
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


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
