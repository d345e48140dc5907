"""What there is to look at for a node without the broker, as lines of JSON on a stream that stays open.

Invariants: a line is a hint. Each look reads the rows, so one that was lost is said again at the next; looks are made
when the broker says that something came, and every `LOOK_S` anyway, for what waits since somebody fell silent. Messages
in queues that the node would consume if it had the broker are let go: nobody else takes them, and they only said what
the rows say. The token is checked again each `LOOK_S`, by whoever answers the node's operations as well, so that all
of a node's requests share a check: behind a revocation the stream says so and ends. An empty line each `QUIET_S` shows
that it lives.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import psycopg
import redis.asyncio
from django.conf import settings
from django.db import OperationalError
from psycopg_pool import PoolTimeout

from flexmarl.contracts.commands import BROKER_TIMEOUT_S, HELD_HINT, NODES_HINT, WAKE_CHANNEL
from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.inventory.node_tokens import TokenRefused
from flexmarl.controlplane.inventory.node_work import NodeWork
from flexmarl.store.control import news, nodes
from flexmarl.store.node_operations import NodeCaller

ROLES = ("device", "node", "reward", "rollout")
LOOK_S = 1.0
AGAIN_S = 0.25
"""Between tries to reach a broker that is away."""
QUIET_S = 2.0
_HINTS = frozenset({NODES_HINT, HELD_HINT})
"""Words that are handed on as they are: who hears them reads the rows itself."""
_AWAY = (OperationalError, psycopg.OperationalError, PoolTimeout, ProblemError)
LONGEST_S = 3600.0
"""A stream ends after an hour; the node connects again."""


async def lines(
    work: NodeWork, caller: NodeCaller, role: str, checked: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """Yield news of a role until the token holds no more, of which `checked` raises TokenRefused, or an hour."""
    began = told = looked = time.monotonic()
    yield b"\n"
    try:
        queues = await work.done(caller.node, _queues, caller, role)
    except _AWAY:
        return
    async with aclosing(_wakes(lambda word: _concerns(caller, role, word), queues)) as wakes:
        async for word in wakes:
            found = [{"hint": word}] if word in _HINTS else []
            now = time.monotonic()
            due = now - looked >= LOOK_S
            if due or not found:
                try:
                    if due:
                        await checked()
                    found += await work.done(caller.node, _look, caller, role)
                except TokenRefused as refused:
                    yield _line({"refused": str(refused)})
                    return
                except _AWAY:
                    continue  # the database is away: what waits there is said at the next look
                looked = now if due else looked
            if found or now - told >= QUIET_S:
                told = now
                yield b"".join(map(_line, found)) or b"\n"
            if now - began >= LONGEST_S:
                return


def _queues(conn: psycopg.Connection, caller: NodeCaller, role: str) -> list[str]:
    """Return the queues of the broker that a role would consume."""
    if role == "device":
        return [f"device.{device.id}" for device in nodes.devices_of(conn, caller.node)]
    return [] if role == "node" else [f"{role}.{caller.pool}"]


def _concerns(caller: NodeCaller, role: str, word: str) -> bool:
    """Tell whether a word of the wake channel is about work of a role: the name of its queue, or a word of its own."""
    match role:
        case "node":
            return word == NODES_HINT
        case "device":
            return word.startswith(f"device.{caller.node}.")
        case "rollout":
            return word in {f"rollout.{caller.pool}", HELD_HINT}
    return word == f"reward.{caller.pool}"


def _look(conn: psycopg.Connection, caller: NodeCaller, role: str) -> list[dict[str, Any]]:
    """Return what waits, as lines."""
    if role == "node":
        return [{"hint": NODES_HINT}] if news.waits_on_node(conn, caller.node) else []
    if role == "reward":
        waiting = news.open_rewards(conn, caller.pool)
    elif role == "device":
        waiting = news.open_for_devices(conn, caller.node)
    else:
        waiting = news.open_in_queue(conn, f"rollout.{caller.pool}")
    return [{"queue": one.queue, "actor": one.kind, "run_id": one.run_id, "no": one.no} for one in waiting]


async def _wakes(concerns: Callable[[str], bool], queues: list[str]) -> AsyncGenerator[str]:
    """Yield words of the wake channel that concern the reader, and an empty one when none came for `LOOK_S`.

    Messages in the queues go every `QUIET_S`.
    """
    kept = [key for queue in queues for key in (f"dramatiq:{queue}", f"dramatiq:{queue}.msgs")]
    cleared = 0.0
    client = redis.asyncio.Redis.from_url(
        settings.BROKER_URL, socket_connect_timeout=BROKER_TIMEOUT_S, socket_timeout=BROKER_TIMEOUT_S
    )
    async with client, client.pubsub(ignore_subscribe_messages=True) as channel:
        subscribed = False
        until = time.monotonic() + LOOK_S
        while True:
            word = ""
            try:
                if not subscribed:
                    await channel.subscribe(WAKE_CHANNEL)
                    subscribed = True
                if kept and time.monotonic() - cleared >= QUIET_S:
                    cleared = time.monotonic()
                    await client.delete(*kept)
                message = await channel.get_message(timeout=max(0.0, until - time.monotonic()))
                word = message["data"].decode() if message else ""
            except redis.RedisError:
                subscribed = False
                await asyncio.sleep(AGAIN_S)  # it is away: the rows are looked at all the same
            if concerns(word) or time.monotonic() >= until:
                yield word
                until = time.monotonic() + LOOK_S


def _line(what: dict[str, Any]) -> bytes:
    return json.dumps(what).encode() + b"\n"
