"""Places, threads and connections for what nodes with a token ask for.

Invariants: as many work at once as there are connections for them, the callers in turns (`lines`); who finds no place
is told to come again. A thread keeps its connection from one piece of work to the next while it is whole. It is opened
as a worker's, so statements are prepared once and planned once, however many nodes ask. Whoever gives up waiting leaves
the place to its thread until that is free.
"""

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import Concatenate, ParamSpec, TypeVar

import psycopg
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections
from psycopg.pq import TransactionStatus

from flexmarl.controlplane.common import database
from flexmarl.controlplane.common.database import Purpose
from flexmarl.controlplane.common.lines import AdmissionQueue
from flexmarl.controlplane.common.problems import DatabaseUnavailable
from flexmarl.controlplane.common.store import database_url
from flexmarl.store import connection

P = ParamSpec("P")
T = TypeVar("T")


class NodeWork:
    """Has work done in threads, with connections to the store. Belongs to one event loop."""

    def __init__(self) -> None:
        self._limits = settings.DATABASE_LIMITS[Purpose.NODES]
        self._queue = AdmissionQueue(self._limits.connections)
        self._local = threading.local()

    async def done(
        self, caller: Hashable, work: Callable[Concatenate[psycopg.Connection, P], T], *args: P.args, **more: P.kwargs
    ) -> T:
        """Work for a caller, in its turn; what it opens of Django's own connections is given back.

        Raises ProblemError when there is no place or no database, and what `work` raises.
        """

        async def placed() -> T:
            async with self._queue.place(caller):
                return await sync_to_async(self._with_connection)(work, *args, **more)

        return await asyncio.shield(asyncio.ensure_future(placed()))

    def _with_connection(
        self, work: Callable[Concatenate[psycopg.Connection, P], T], *args: P.args, **more: P.kwargs
    ) -> T:
        """Work with this thread's connection, and keep it if the next one can use it."""
        database.purpose.set(Purpose.NODES)
        conn = self._connection()
        try:
            return work(conn, *args, **more)
        finally:
            close_old_connections()
            if conn.info.transaction_status != TransactionStatus.IDLE:
                self._local.connection = None
                conn.close()

    def _connection(self) -> psycopg.Connection:
        kept: psycopg.Connection | None = getattr(self._local, "connection", None)
        if kept is not None:
            return kept
        try:
            made = connection.connect(database_url(), "flexmarl.nodes", statement_s=self._limits.statement_s)
        except psycopg.OperationalError as error:
            raise DatabaseUnavailable(str(error)) from error
        self._local.connection = made
        return made
