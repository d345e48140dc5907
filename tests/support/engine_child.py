"""A real engine child as a device worker starts it: a process of its own, told what to be on standard input."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.support.forked import Process, started
from workers.child import ChildConfig, ReadyLine

PATIENCE_S = 120


@dataclass
class EngineChild:
    process: Process
    url: str
    incarnation: str


def start_engine(home: Path, incarnation: str, spec: dict[str, Any]) -> EngineChild:
    """Start an engine whose secret is `secret`; its state plane is under `home`."""
    config = ChildConfig("engine", 1, 2, 3, incarnation, "cpu", 1, "127.0.0.1", "secret", str(home), spec)
    process = started("workers.rollout.engines.serve", {})
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(config) + b"\n")
    process.stdin.flush()
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    ready = msgspec.json.decode(process.stdout.readline(), type=ReadyLine)
    watchdog.cancel()
    assert ready.incarnation == incarnation
    return EngineChild(process, f"http://127.0.0.1:{ready.port}", incarnation)
