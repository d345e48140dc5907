"""What the gateway adds to a call of an agent program, and how many sessions it carries.

Both sides ask the same engine, in turns: the program over the gateway (chat completions of a growing conversation), and
a client of the engine's own server with the ids that the gateway puts to it. The engine has processes of its own and
answers at once, so what is left is the way: dialect, chat template, chains, turns, and the engine's HTTP. `added_*` are
differences of quantiles. Then many sessions ask at the same time, each from a connection of its own: every call is to
be answered and every session to finish, and `memory_mb` is the most that the gateway's process held.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import psycopg
from gateway_processes import PIN, REPLY, RUN, SECRET, engine_process, gateway_process, key_of
from harness import Report, start
from rollout_played import database

from flexmarl.contracts.plane_tokens import TokenPlane, sign
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.status import RunStatus
from flexmarl.store import schema
from flexmarl.store.control import program_sessions, runs
from workers.rollout.engines.wire import CompletionRequest

SEATS = {"agents": {"guesser": {}, "hinter": {}}, "environment": {"type": "hot_cold"}}
TURNS = 20
"""Calls of a conversation, before another one begins."""


def main() -> None:
    """Start the processes, ask in turns, then all at once; report."""
    report = start("gateway", __doc__ or "", _options)
    with (
        tempfile.TemporaryDirectory(prefix="flexmarl-gateway-") as folder,
        database(Path(folder)) as (postgres, _),
        psycopg.connect(postgres.url, autocommit=True) as conn,
    ):
        schema.apply(conn)
        runs.create_run(conn, RUN, resolve(SEATS).document, RunStatus.RUNNING)
        asyncio.run(_measured(conn, postgres.url, report))
    report.finish()


async def _measured(conn: psycopg.Connection, database_url: str, report: Report) -> None:
    calls = 60 if report.quick else int(str(report.settings["calls"]))
    sessions = 20 if report.quick else int(str(report.settings["sessions"]))
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    engine = spawn.Process(target=engine_process, args=(theirs,), daemon=True)
    engine.start()
    engine_url = await asyncio.to_thread(mine.recv)
    near, far = spawn.Pipe()
    gateway = spawn.Process(target=gateway_process, args=(far, database_url, engine_url), daemon=True)
    gateway.start()
    await asyncio.to_thread(near.recv)
    try:
        await _latency(conn, near, engine_url, calls, report)
        await _crowd(conn, near, sessions, int(str(report.settings["calls_each"])), report)
    finally:
        near.send(None)
        gateway.join(60)
        engine.kill()


async def _begun(conn: psycopg.Connection, near: Connection, first: int, count: int) -> list[tuple[str, str, Any]]:
    """Have episodes played, and take their sessions; returns base URL, key and id of each."""
    near.send((first, count))
    taken: list[tuple[str, str, Any]] = []
    deadline = time.monotonic() + 120
    while len(taken) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(taken)} of {count} sessions were opened")
        key = key_of(first + len(taken))
        if (id_ := program_sessions.take(conn, RUN, sha256(key.encode()).hexdigest())) is None:
            await asyncio.sleep(0.05)
            continue
        (url,) = conn.execute("SELECT base_url FROM store.program_session WHERE id = %s", [id_]).fetchone() or ("",)
        taken.append((url, key, id_))
    return taken


async def _latency(conn: psycopg.Connection, near: Connection, engine_url: str, calls: int, report: Report) -> None:
    [(url, key, session)] = await _begun(conn, near, 0, 1)
    token = sign(SECRET, RUN, TokenPlane.ROLLOUT, time.time())
    seconds: dict[str, list[float]] = {"gateway": [], "engine": []}
    async with aiohttp.ClientSession() as http:
        messages: list[dict[str, str]] = []
        for call in range(calls + 10):
            messages = [] if call % TURNS == 0 else messages
            messages.append({"role": "user", "content": f"Question {call}: and what is {call} plus {call + 1}?"})
            took, answer = await _asked(http, f"{url}/v1/chat/completions", key, messages, call)
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            own = await _asked_engine(http, engine_url, token, answer["usage"]["prompt_tokens"])
            if call >= 10:
                seconds["gateway"].append(took)
                seconds["engine"].append(own)
    assert program_sessions.report(conn, RUN, session, {"reward": 1.0})
    assert await asyncio.to_thread(near.recv) == (1, 0), "the session did not finish"
    for name, own in seconds.items():
        report.figures[f"{name}_p50_ms"] = float(np.median(own)) * 1e3
        report.figures[f"{name}_p99_ms"] = float(np.quantile(own, 0.99)) * 1e3
    for at in ("p50", "p99"):
        report.figures[f"added_{at}_ms"] = report.figures[f"gateway_{at}_ms"] - report.figures[f"engine_{at}_ms"]


async def _asked(
    http: aiohttp.ClientSession, url: str, key: str, messages: list[dict[str, str]], call: int
) -> tuple[float, Any]:
    body = {"model": ("solver", "reviser")[call // TURNS % 2], "messages": messages}
    headers = {"Authorization": f"Bearer {key}", "X-Stainless-Retry-Count": "0"}
    began = time.perf_counter()
    async with http.post(url, json=body, headers=headers) as answer:
        said = await answer.json()
        took = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {said}")
        return took, said


async def _asked_engine(http: aiohttp.ClientSession, url: str, token: str, prompt_tokens: int) -> float:
    asked = CompletionRequest(
        model="solver", prompt=[[3] * prompt_tokens], seeds=[1], max_tokens=REPLY, version=PIN.version,
        digest=PIN.digest, temperature=1.0, stop_token_ids=[],
    )  # fmt: skip
    body = msgspec.json.encode(asked)
    began = time.perf_counter()
    async with http.post(f"{url}/v1/completions", data=body, headers={"Authorization": f"Bearer {token}"}) as answer:
        await answer.read()
        assert answer.status == 200, answer.status
    return time.perf_counter() - began


async def _crowd(conn: psycopg.Connection, near: Connection, sessions: int, each: int, report: Report) -> None:
    began = time.perf_counter()
    taken = await _begun(conn, near, 1, sessions)
    report.figures["open_s"] = time.perf_counter() - began
    took: list[float] = []

    async def program(http: aiohttp.ClientSession, url: str, key: str) -> None:
        messages: list[dict[str, str]] = []
        for call in range(each):
            messages.append({"role": "user", "content": f"Question {call}?"})
            seconds, answer = await _asked(http, f"{url}/v1/chat/completions", key, messages, 0)
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            took.append(seconds)

    began = time.perf_counter()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as http:
        results = await asyncio.gather(*(program(http, url, key) for url, key, _ in taken), return_exceptions=True)
    report.figures["calls_per_s"] = sessions * each / (time.perf_counter() - began)
    for _, _, id_ in taken:
        assert program_sessions.report(conn, RUN, id_, {"reward": 1.0})
    finished, failed = await asyncio.to_thread(near.recv)
    report.figures["sessions"] = sessions
    report.figures["call_p50_ms"] = float(np.median(took)) * 1e3
    report.figures["call_p99_ms"] = float(np.quantile(took, 0.99)) * 1e3
    report.figures["errors"] = sum(isinstance(one, BaseException) for one in results) + failed
    report.figures["finished"] = finished
    near.send("memory")
    report.figures["memory_mb"] = await asyncio.to_thread(near.recv)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--calls-each", type=int, default=10)


if __name__ == "__main__":
    main()
