"""Runs the node agent of this machine: `python -m workers.node`."""

import asyncio
import errno
import os
import signal
import sys
import uuid
from importlib import metadata

import structlog

from flexmarl.store.errors import SchemaMismatch
from workers import reporting, settings
from workers.database import Pool, open_pool
from workers.errors import SettingsError
from workers.nodes.agent import NodeAgent, Superseded
from workers.nodes.inventory import discover, node_facts
from workers.settings import Settings

log = structlog.get_logger(__name__)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    reporting.configure("node")
    try:
        config = settings.load()
        pool = open_pool(config.database_url, "flexmarl node", size=2)
    except (SettingsError, SchemaMismatch) as error:
        sys.exit(f"node: {error}")
    shipper = reporting.ship(config.database_url, "node", config.node)
    with pool:
        problem = asyncio.run(_serve(config, pool))
    shipper.stop()
    if problem:
        sys.exit(f"node: {problem}")


async def _serve(config: Settings, pool: Pool) -> str:
    """Run the agent; returns why it had to end, empty when it was asked to."""
    devices = discover(config.node, config.device_classes, config.cpu_shares)
    agent = NodeAgent(config, pool, devices, uuid.uuid4().hex)
    running = asyncio.create_task(agent.run(node_facts(), _version()))
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
    return ""


def _version() -> str:
    try:
        return metadata.version("flexmarl")
    except metadata.PackageNotFoundError:
        return "checkout"


if __name__ == "__main__":
    main()
