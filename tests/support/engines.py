"""Engine children as a host starts them: the same processes, contract and HTTP for every engine, without a database.

`running_engine("torch", home)` and `running_engine("vllm", home)` differ in nothing a client sees.
"""

import contextlib
import json
import os
import queue
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers.child import ChildConfig
from workers.children import Child, Ended, Failed, Ready
from workers.forking import ForkServerThread
from workers.models.weights import initial_weights
from workers.programs import MODULES, Program, confined, vllm_program
from workers.rollout.engines.wire import CompletionChoice, CompletionResponse, Stats
from workers.transfer.local import LocalTier

VLLM_PYTHON = os.environ.get("FLEXMARL_VLLM_PYTHON", "")
needs_vllm = pytest.mark.skipif(
    not VLLM_PYTHON, reason="FLEXMARL_VLLM_PYTHON names no interpreter with vLLM; scripts/test makes one"
)
SECRET = "secret"
START_S = 300.0
WORDS = 40


def engine_spec(
    engine: str, size: str = "M", more: Mapping[str, Any] | None = None, listener: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    policy = {"model": {"type": "factory", "size": size}}
    return {
        "agents": {"speaker": {}, "listener": dict(listener or {})},
        "policies": {"speaker": policy, "listener": policy, **(more or {})},
        "environment": {"type": "reference_game"},
        "resources": {"engine": engine},
    }


def seen_by_child(device: str) -> tuple[str, str]:
    """Return a device as its child sees it, and the indices of the GPUs that the child may see."""
    kind, _, index = device.partition(":")
    return ("cuda:0", index or "0") if kind == "cuda" else ("cpu", "")


class RunningEngine:
    """A started engine child and the state plane it reads. `ask` speaks its dialect."""

    def __init__(
        self,
        engine: str,
        home: Path,
        size: str = "M",
        threads: int = 1,
        more: Mapping[str, Any] | None = None,
        life: str = "life-1",
        device: str = "cpu",
        spec: dict[str, Any] | None = None,
        roots: tuple[str, ...] = (),
        listener: Mapping[str, Any] | None = None,
        devices: int = 1,
        forks: ForkServerThread | None = None,
    ) -> None:
        """`spec`: another run than the reference game's, whose models lie below `roots`. `forks` starts it."""
        self.home = home
        self.spec = spec or engine_spec(engine, size, more, listener)
        own, index = seen_by_child(device)
        self.plane = LocalTier(home)
        self.told: queue.SimpleQueue[Ready | Failed | Ended] = queue.SimpleQueue()
        config = ChildConfig("engine", 1, 2, 3, life, own, threads, "127.0.0.1", SECRET, str(home), self.spec)
        config.model_roots, config.python = (str(home.parent), *roots), sys.executable
        config.devices = devices
        program = vllm_program(VLLM_PYTHON) if engine == "vllm" else Program(MODULES[DeviceUse.ENGINE])
        environment = {**confined(threads, index), **program.environment}
        self.child = Child(program.module, config, environment, home / "engine.log", program.python, forks)
        self.child.watch(self.told.put)
        self.url = ""

    def ready(self) -> "RunningEngine":
        said = self.told.get(timeout=START_S)
        assert isinstance(said, Ready), f"{said}: {(self.home / 'engine.log').read_text()[-2000:]}"
        self.url = f"http://127.0.0.1:{said.port}"
        return self

    def put(self, seed: int, words: int = WORDS, spoil: float = 1.0) -> str:
        """Store weights as a trainer does; returns their digest. `spoil` multiplies those behind the last layer."""
        state = initial_weights(ExperimentSpec.model_validate(self.spec).policies["speaker"].model, words, seed)
        if spoil != 1.0:
            for name in ("model.norm.weight", "lm_head.weight"):
                state[name] *= spoil
        return self.plane.put(state).digest

    async def ask(self, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {SECRET}"}) as session:
            method = "GET" if body is None else "POST"
            data = None if body is None else msgspec.json.encode(body)
            async with session.request(method, self.url + path, data=data) as response:
                return response.status, json.loads(await response.read())

    async def load(self, policy: str, version: int, digest: str, keeps: tuple[int, ...] = ()) -> None:
        body = {"policy": policy, "version": version, "digest": digest, "keeps": list(keeps)}
        answer = await self.ask("/load", body)
        assert answer == (200, {"version": version, "digest": digest}), answer

    async def complete(self, **body: object) -> list[CompletionChoice]:
        status, answer = await self.ask("/v1/completions", body)
        assert status == 200, answer
        return msgspec.convert(answer, CompletionResponse).choices

    async def stats(self) -> Stats:
        return msgspec.convert((await self.ask("/stats"))[1], Stats)


@contextlib.contextmanager
def running_engine(
    engine: str,
    home: Path,
    size: str = "M",
    threads: int = 1,
    more: Mapping[str, Any] | None = None,
    listener: Mapping[str, Any] | None = None,
    devices: int = 1,
) -> Iterator[RunningEngine]:
    """Start an engine and stop it afterwards. `more`: policies besides those of the reference game; `listener`: what
    its listener is.
    """
    running = RunningEngine(engine, home, size, threads, more, listener=listener, devices=devices)
    try:
        yield running.ready()
    finally:
        running.child.stop(20.0)
