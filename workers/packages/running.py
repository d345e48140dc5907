"""Runs a build in a process that can be killed: for the node that was asked for it, and for a host that lacks it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from workers.children import build_environment
from workers.packages.building import BuildOrder
from workers.roots import python_path

LIMIT_S = 900.0
"""Longest time of one build."""
LOOK_S = 2.0
MOST_LINE = 2**24

Told = Callable[[str, str], Awaitable[bool]]
"""Takes what is being done and the log; False: nobody wants the rest."""


class NotWanted(Exception):
    """The build was cancelled, or another node has it."""


async def run_build(home: Path, order: BuildOrder, log: Path, told: Told, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Build; return digest, lock and manifest, or code and detail of why not. Raises NotWanted."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.packages.building", str(home),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, limit=MOST_LINE,
            start_new_session=True, env={**build_environment(), "PYTHONPATH": python_path()},
        )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(order))
    process.stdin.close()
    try:
        async with asyncio.timeout(limit_s):
            return await _followed(process, log, told)
    except TimeoutError:
        return {"code": "time_limit", "detail": f"The build was not done after {limit_s:g} s."}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _followed(process: asyncio.subprocess.Process, log: Path, told: Told) -> dict[str, Any]:
    assert process.stdout is not None
    now, reading = "", asyncio.ensure_future(process.stdout.readline())
    while True:
        await asyncio.wait([reading], timeout=LOOK_S)
        if reading.done():
            if not (line := reading.result()):
                break
            said: dict[str, Any] = json.loads(line)
            if "now" not in said:
                return said
            now, reading = said["now"], asyncio.ensure_future(process.stdout.readline())
        if not await told(now, read_log(log)):
            reading.cancel()
            raise NotWanted
    code = await process.wait()
    if code < 0:
        detail = f"Its process was ended by signal {-code}, most likely for lack of memory."
        return {"code": "out_of_memory", "detail": detail}
    return {"code": "fault", "detail": f"The build ended with code {code}; its log says more."}


def read_log(log: Path) -> str:
    """Return the end of a log."""
    with log.open("rb") as written:
        size = written.seek(0, os.SEEK_END)
        written.seek(max(0, size - 200_000))
        return written.read().decode(errors="replace")
