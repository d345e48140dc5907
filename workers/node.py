"""Runs the node agent of this machine: `python -m workers.node`."""

import asyncio
import errno
import os
import signal
import sys
import uuid

import structlog

from flexmarl.host.exits import carry_out, refuse
from flexmarl.host.output import protect
from flexmarl.store.control.heartbeat import Heartbeat
from flexmarl.store.errors import SchemaMismatch
from workers import reporting, settings
from workers.database import StorePool
from workers.entry import end_waiting, entry, settled
from workers.errors import NotAdmitted, SettingsError
from workers.nodes.agent import NodeAgent, Superseded
from workers.nodes.inventory import agent_version, discover, node_facts
from workers.settings import Settings

log = structlog.get_logger(__name__)
STUCK_S = 60.0
"""An event loop that has not turned for so long is stuck: what takes long runs in threads."""


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    reporting.configure("node")
    try:
        config = settled(settings.load())
        heartbeat = Heartbeat("node", node=config.node, place=config.place, descriptor=config.heartbeat_descriptor)
        heartbeat.start()
        way = entry(config, "flexmarl node")
    except SettingsError as error:
        refuse(f"node: {error}")
    except SchemaMismatch as error:
        sys.exit(f"node: {error}")
    heartbeat.report(way.connect)
    shipper = reporting.ship(way.connect, "node", config.node)
    with way.pool as pool:
        problem = asyncio.run(_serve(config, pool, heartbeat))
    shipper.stop()
    heartbeat.stop()
    if problem:
        sys.exit(f"node: {problem}")


async def _serve(config: Settings, pool: StorePool, heartbeat: Heartbeat) -> str:
    """Run the agent; returns why it had to end, empty when it was asked to."""
    devices = discover(config.node, config.device_classes, config.cpu_shares, config.share)
    agent = NodeAgent(config, pool, devices, uuid.uuid4().hex)
    running = asyncio.create_task(agent.run(node_facts(config.vllm_python, config.containers), agent_version()))
    following = asyncio.create_task(heartbeat.follow("event loop", STUCK_S))

    def stop() -> None:
        running.cancel()
        end_waiting(config)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        await running
    except asyncio.CancelledError:
        log.info("stopped")
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise
        where, why = config.node_bind, os.strerror(error.errno or 0)
        return f"cannot listen on {where}: {why}; set FLEXMARL_NODE_BIND to a free port of this host"
    except ExceptionGroup as group:
        final = group.subgroup((Superseded, NotAdmitted))
        if final is None:
            raise
        return str(final.exceptions[0])
    except NotAdmitted as refused:
        return str(refused)
    finally:
        following.cancel()
        end_waiting(config)
    return ""


if __name__ == "__main__":
    protect()
    carry_out(main)
