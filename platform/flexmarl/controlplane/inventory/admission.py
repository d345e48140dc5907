"""Who may ask in front of Django: tokens that held lately, and their checks, many at a time.

Invariants: a token is believed for `BELIEVED_S` after a check, no longer. Checks that come together share a statement,
and those of all nodes that hold a stream are made ahead of time, so that none of their requests waits for one.
"""

import time
from collections.abc import Collection, Sequence

import psycopg
from django.db import OperationalError
from psycopg_pool import PoolTimeout

from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.inventory import node_tokens
from flexmarl.controlplane.inventory.gathering import Gathering
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.node_door import AWAY, REFUSED, NodeAnswer, refused
from flexmarl.controlplane.inventory.node_tokens import TokenRefused
from flexmarl.controlplane.inventory.node_work import NodeWork

BELIEVED_S = 1.5
"""Longer than the time between two checks of all nodes that hold a stream, shorter than two seconds."""
MOST_BELIEVED = 10_000
Checked = NodeToken | TokenRefused


class Admission:
    """The tokens that held lately. Belongs to one event loop."""

    def __init__(self, work: NodeWork) -> None:
        self._work = work
        self._checks = Gathering(work, "tokens", _checked)
        self._believed: dict[str, tuple[float, NodeToken]] = {}
        """Headers of tokens that held, with when that was looked at."""

    async def admitted(self, header: str) -> NodeToken | NodeAnswer:
        """Return the token that an Authorization header names, as it was within `BELIEVED_S`, or why there is none."""
        asked = time.monotonic()
        kept = self._believed.get(header)
        if kept is not None and asked - kept[0] < BELIEVED_S:
            return kept[1]
        try:
            found = await self._checks.done(header)
        except (OperationalError, psycopg.OperationalError, PoolTimeout, ProblemError) as away:
            return refused(AWAY, "database_away", str(away))
        return self._kept(header, found, asked)

    async def renew(self, headers: Collection[str]) -> dict[str, str]:
        """Check tokens in one statement; return why some are refused. Raises OperationalError, ProblemError."""
        asked, named = time.monotonic(), list(headers)
        found = await self._work.done("tokens", _checked, named)
        for header, one in zip(named, found, strict=True):
            self._kept(header, one, asked)
        return {header: str(one) for header, one in zip(named, found, strict=True) if isinstance(one, TokenRefused)}

    def _kept(self, header: str, found: Checked, asked: float) -> NodeToken | NodeAnswer:
        self._believed.pop(header, None)
        if isinstance(found, TokenRefused):
            return refused(REFUSED, "not_admitted", str(found))
        if len(self._believed) >= MOST_BELIEVED:
            self._believed.clear()
        self._believed[header] = asked, found
        return found


def _checked(_: psycopg.Connection, headers: Sequence[str]) -> list[Checked]:
    return node_tokens.check_all(headers)
