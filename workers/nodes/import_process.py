"""Runs an import in a process that can be killed, and follows what it says line by line."""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from flexmarl.host.exits import last_words
from flexmarl.store.server_paths import without_paths
from workers.children import child_environment
from workers.errors import ImportRefused
from workers.roots import python_path
from workers.settings import Settings

RENEW_S = 3.0
LIMIT_S = 3600.0
"""Longest time of one import."""
FETCHED = "fetched"
"""Folder below the home for what is fetched from elsewhere while it is imported."""
MOST_WORDS = 500
Going = Callable[[dict[str, Any]], Awaitable[bool]]
"""Takes the newest line with `now`, which is empty at first; False: nobody wants the rest."""


class ImportStopped(Exception):
    """The import was cancelled, or another node has it."""


@dataclass(frozen=True, slots=True)
class ImportProcess:
    """`python -m module *arguments`: it reads a token as one line, and writes one JSON object per line."""

    module: str
    arguments: Sequence[str]
    token: str
    fetched: Path
    """Folder for what it fetches, which whoever runs it deletes."""


def secret_of(settings: Settings, name: str) -> str:
    """Return the value of a secret that an import names, empty for none. Raises ImportRefused where it is not set."""
    if not name:
        return ""
    if not (value := settings.secrets.get(name)):
        text = f"FLEXMARL_EXTERNAL_SECRET_{name} is not set on node {settings.node}."
        raise ImportRefused("secret_missing", text)
    return value


async def run_import(order: ImportProcess, going: Going) -> dict[str, Any]:
    """Return the last line of an import, or code and detail of why there is none. Raises ImportStopped.

    The process is gone when this ends.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", order.module, *order.arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=2**22,
        env=child_environment({
            "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": "",
            "HF_HOME": str(order.fetched / "library"), "HF_HUB_DISABLE_TELEMETRY": "1",
        }),
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(f"{order.token}\n".encode())
    process.stdin.close()
    said = asyncio.create_task(_all_of(process))
    try:
        async with asyncio.timeout(LIMIT_S):
            return await _followed(process, said, going)
    except TimeoutError:
        return {"code": "time_limit", "detail": f"The import was not done after {LIMIT_S:.0f} s."}
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        said.cancel()


async def remove(fetched: Path) -> None:
    """Delete what an import fetched."""
    await asyncio.to_thread(shutil.rmtree, fetched, ignore_errors=True)


async def _followed(process: asyncio.subprocess.Process, said: "asyncio.Task[str]", going: Going) -> dict[str, Any]:
    assert process.stdout is not None
    now: dict[str, Any] = {"now": ""}
    reading = asyncio.ensure_future(process.stdout.readline())
    while True:
        await asyncio.wait([reading], timeout=RENEW_S)
        if reading.done():
            if not (line := reading.result()):
                break
            told = msgspec.json.decode(line)
            if "now" not in told:
                return dict(told)
            now, reading = told, asyncio.ensure_future(process.stdout.readline())
        if not await going(now):
            reading.cancel()
            raise ImportStopped
    code = await process.wait()
    if code < 0:
        text = f"Its process was ended by signal {-code}, most likely for lack of memory."
        return {"code": "out_of_memory", "detail": text}
    last = without_paths(last_words(await said, code))[:MOST_WORDS]
    return {"code": "fault", "detail": f"The import ended with code {code}: {last}"}


async def _all_of(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    return (await process.stderr.read()).decode(errors="replace")
