"""A second host beside an installation: a node of its own name, with its own home and devices."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.system import ROOT, Api, System

WITHIN_S = 240.0
_PROCESSES = (["-m", "workers.node"], ["-m", "workers.run", "--role", "device"])


@contextmanager
def further_node(system: System, home: Path, settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a node, named as its home is, and a device worker beside those of the installation."""
    (home / "logs").mkdir(parents=True)
    published = json.loads((system.home / "run" / "environment.json").read_text())
    environment = {
        **os.environ,
        **published,
        "FLEXMARL_HOME": str(home),
        "FLEXMARL_NODE": home.name,
        "FLEXMARL_LOG_DIR": str(home / "logs"),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
        "OMP_NUM_THREADS": "1",
        **(settings or {}),
    }
    processes = []
    for command in _PROCESSES:
        with (home / f"{command[1]}.out").open("wb") as out:
            processes.append(
                subprocess.Popen([sys.executable, *command], env=environment, cwd=ROOT, stdout=out, stderr=out)
            )
    yield
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(20)


def eventually(look: Callable[[], Any], within_s: float = WITHIN_S) -> Any:
    """Return what a look finds once it finds something."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.6)
    return found


def known_nodes(api: Api, *names: str) -> Api:
    """Wait until these nodes are ready. A shared installation knows others, of former tests, that have ended."""
    eventually(lambda: {node["name"] for node in ready_nodes(api)} >= set(names))
    return api


def ready_nodes(api: Api) -> list[dict[str, Any]]:
    """Return the nodes that may take work."""
    return [node for node in api.get("/nodes")["results"] if node["state"] == "ready"]
