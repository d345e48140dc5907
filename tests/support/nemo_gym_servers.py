"""Resources servers of the package nemo-gym itself, in an interpreter of their own: it needs Python 3.12 or newer."""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

PYTHON = os.environ.get("FLEXMARL_NEMO_PYTHON", "")
"""An interpreter with nemo-gym installed; empty: its servers are not started."""
BOOT_S = 180.0
SERVE = """
import importlib, sys
from unittest.mock import MagicMock
import nemo_gym
import uvicorn
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.server_utils import ServerClient
name, port = sys.argv[1], int(sys.argv[2])
module = importlib.import_module(f"resources_servers.{name}.app")
[kind] = [
    one for one in vars(module).values()
    if isinstance(one, type) and issubclass(one, SimpleResourcesServer) and one.__module__ == module.__name__
]
settings = kind.model_fields["config"].annotation(host="127.0.0.1", port=port, entrypoint="app.py", name=name)
server = kind(config=settings, server_client=MagicMock(spec=ServerClient))
app = server.setup_webserver()
server.setup_exception_middleware(app)
uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
"""
READ = """
import sys
from pathlib import Path
import nemo_gym
print((Path(nemo_gym.__file__).parents[1] / "resources_servers" / sys.argv[1] / "data/example.jsonl").read_text())
"""


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the rows that the package has of an environment."""
    read = subprocess.run([PYTHON, "-c", READ, name], capture_output=True, text=True, check=True, timeout=BOOT_S)
    return [json.loads(line) for line in read.stdout.splitlines() if line.startswith("{")]


@asynccontextmanager
async def served(name: str, log: Path) -> AsyncIterator[str]:
    """Serve an environment of the package; yields its host and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    with log.open("wb") as out:
        command = [PYTHON, "-c", SERVE, name, host.partition(":")[2]]
        process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out)
    try:
        async with asyncio.timeout(BOOT_S), aiohttp.ClientSession() as http:
            while not await _answers(http, host):
                assert process.returncode is None, log.read_text(errors="replace")[-2000:]
                await asyncio.sleep(0.2)
        yield host
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _answers(http: aiohttp.ClientSession, host: str) -> bool:
    try:
        async with http.get(f"http://{host}/openapi.json"):
            return True
    except aiohttp.ClientError:
        return False
