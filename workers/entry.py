"""How a worker process comes to the store: by the database's address, or through the control plane under a token."""

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import psycopg
import structlog

from flexmarl.host.addresses import is_own_host
from flexmarl.store.connection import connect
from flexmarl.store.errors import SessionsNotKept
from flexmarl.store.node_operations import PLACE
from workers.database import StorePool, open_pool
from workers.door.address import DoorAddress
from workers.door.client import Admitted, DoorAway, DoorPool, QuietDoor, admitted
from workers.errors import SettingsError
from workers.settings import Settings

log = structlog.get_logger(__name__)

CONNECTIONS = 2
AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Entry:
    """The way in."""

    pool: AbstractContextManager[StorePool]
    connect: str | Callable[[], psycopg.Connection]
    """Of threads with a connection of their own: heartbeats and log lines."""


def settled(config: Settings, stopping: threading.Event | None = None) -> Settings:
    """Return the settings with what a node token says: name, pool and place. Waits for the control plane.

    Raises SettingsError for a token that is none, or another node's; SchemaMismatch; SystemExit when it is to stop
    before it knows.
    """
    stopping = stopping or threading.Event()
    if config.door is None:
        return config
    told = False
    while True:
        try:
            who = admitted(config.door)
            break
        except DoorAway as away:
            if not told:
                log.warning("waiting for the control plane", error=str(away))
            told = True
            if stopping.wait(AGAIN_S):
                sys.exit(0)
    if config.node and config.node != who.node:
        raise SettingsError(f"FLEXMARL_NODE is {config.node!r}, but {config.door.told_by} is the token of {who.node!r}")
    _check_reached(config, config.door, who)
    place = f"{PLACE}{who.node}/{config.place}" if config.place else ""
    share = replace(config.share, pool=who.pool)
    return replace(config, node=who.node, rollout_pool=who.pool, place=place, share=share)


def _check_reached(config: Settings, door: DoorAddress, who: Admitted) -> None:
    """Raise SettingsError where nodes of one pool do not reach each other: its runs may take devices of several."""
    if not who.peers or is_own_host(urlsplit(door.url).hostname or ""):
        return  # the control plane and all of the pool are on one host
    others = ", ".join(who.peers)
    if is_own_host(config.child_host):
        raise SettingsError(
            f"FLEXMARL_CHILD_HOST is {config.child_host}, but {who.pool} has other nodes ({others}); set it to the "
            "address at which they reach this host"
        )
    for name, address in who.peers.items():
        if address and is_own_host(urlsplit(f"//{address}").hostname or ""):
            raise SettingsError(
                f"{name}, which has devices in {who.pool} as well, is reached on its own host alone; set "
                f"FLEXMARL_CHILD_HOST there to an address of it and start it again, or use another pool"
            )


def briefly(config: Settings, name: str) -> Callable[[], AbstractContextManager[psycopg.Connection]]:
    """Return what opens the way in for one call, for a process that rarely asks."""
    if config.door is None:
        return partial(connect, config.database_url, name)
    return DoorPool(config.door).connection


def end_waiting(config: Settings) -> None:
    """Let no thread wait for long any more for an answer of the control plane: the process is about to end."""
    if config.door is not None:
        config.door.waits.end()


def entry(config: Settings, name: str) -> Entry:
    """Open the way in. Raises SettingsError for a pooler that shares sessions, SchemaMismatch or psycopg's errors."""
    if config.door is None:
        try:
            return Entry(open_pool(config.database_url, name, size=CONNECTIONS), config.database_url)
        except SessionsNotKept as error:
            raise SettingsError(str(error)) from error
    door = config.door
    return Entry(DoorPool(door), lambda: cast("psycopg.Connection", QuietDoor(door)))
