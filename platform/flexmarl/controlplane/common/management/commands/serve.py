"""`manage.py serve`: the web process alone."""

import asyncio
import resource
import socket
import sys
from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand

from flexmarl.controlplane.common.heartbeats import heartbeat_of
from flexmarl.controlplane.common.store import database_url, require_sessions
from flexmarl.launcher.up import DEFAULT_PORT
from flexmarl.store.control.heartbeat import Heartbeat

GRACE_S = 1
"""Open pages hold a web socket: waiting for them at the end would never end."""


STUCK_S = 60.0
"""An event loop that has not turned for so long is stuck: on the busiest machine a turn takes seconds."""
SWITCH_S = 0.001
"""How long a thread keeps the interpreter while others want it. A request goes between the event loop and its thread
ten times or so, and each time waits for as long behind every thread that works."""
LARGEST_FRAME = 64 * 1024
"""Bytes of a web socket's message; a larger one closes the socket with 1009."""


class Server(uvicorn.Server):
    """A server that shows that its event loop turns."""

    def __init__(self, config: uvicorn.Config, heartbeat: Heartbeat) -> None:
        super().__init__(config)
        self._heartbeat = heartbeat
        self._turned = heartbeat.watch("event loop", STUCK_S)

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        self._turned()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End in order. Behind it uvicorn raises the signal again, and nothing of this process runs any more."""
        await super().shutdown(sockets)
        await asyncio.to_thread(self._heartbeat.stop)


def config_of(host: str, port: int) -> uvicorn.Config:
    """Return how the control plane is served."""
    return uvicorn.Config(
        "flexmarl.controlplane.asgi:application",
        host=host,
        port=port,
        lifespan="off",
        proxy_headers=False,  # whom to believe is a setting of ours: see common.proxies
        timeout_graceful_shutdown=GRACE_S,
        log_config=None,  # the control plane's own logging is set up already
        access_log=False,
        server_header=False,
        ws_max_size=LARGEST_FRAME,
    )


def open_as_many_as_allowed() -> None:
    """Raise the limit of open files to what the system allows this process: a node with a token holds several
    connections, and the limit that processes begin with is often 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Command(BaseCommand):
    """Starts uvicorn with the control plane's application."""

    help = "Serve pages, REST and web sockets."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=DEFAULT_PORT)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until SIGTERM."""
        require_sessions()
        heartbeat = heartbeat_of("web")
        heartbeat.start()
        heartbeat.report(database_url())
        sys.setswitchinterval(SWITCH_S)
        open_as_many_as_allowed()
        config = config_of(options["host"], options["port"])
        Server(config, heartbeat).run()
