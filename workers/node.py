"""Runs the node agent of this machine: `python -m workers.node`."""

import asyncio
import errno
import os
import signal
import sys
import uuid
from importlib import metadata

import structlog

from flexmarl.host.exits import refuse
from flexmarl.host.output import protect
from flexmarl.store.control.heartbeat import Heartbeat
from flexmarl.store.errors import SchemaMismatch
from workers import reporting, settings
from workers.database import Pool, open_pool
from workers.errors import SettingsError
from workers.nodes.agent import NodeAgent, Superseded
from workers.nodes.inventory import discover, node_facts
from workers.settings import Settings

log = structlog.get_logger(__name__)
STUCK_S = 60.0
"""An event loop that has not turned for so long is stuck: what takes long runs in threads."""


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    reporting.configure("node")
    try:
        config = settings.load()
        heartbeat = Heartbeat("node", node=config.node, place=config.place, descriptor=config.heartbeat_descriptor)
        heartbeat.start()
        pool = open_pool(config.database_url, "flexmarl node", size=2)
    except SettingsError as error:
        refuse(f"node: {error}")
    except SchemaMismatch as error:
        sys.exit(f"node: {error}")
    heartbeat.report(config.database_url)
    shipper = reporting.ship(config.database_url, "node", config.node)
    with pool:
        problem = asyncio.run(_serve(config, pool, heartbeat))
    shipper.stop()
    heartbeat.stop()
    if problem:
        sys.exit(f"node: {problem}")


async def _serve(config: Settings, pool: Pool, heartbeat: Heartbeat) -> str:
    """Run the agent; returns why it had to end, empty when it was asked to."""
    devices = discover(config.node, config.device_classes, config.cpu_shares, config.share)
    agent = NodeAgent(config, pool, devices, uuid.uuid4().hex)
    running = asyncio.create_task(agent.run(node_facts(config.vllm_python), _version()))
    following = asyncio.create_task(heartbeat.follow("event loop", STUCK_S))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
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
        superseded = group.subgroup(Superseded)
        if superseded is None:
            raise
        return str(superseded.exceptions[0])
    finally:
        following.cancel()
    return ""


def _version() -> str:
    try:
        return metadata.version("flexmarl")
    except metadata.PackageNotFoundError:
        return "checkout"


if __name__ == "__main__":
    protect()
    main()
