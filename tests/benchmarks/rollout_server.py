"""vLLM's own OpenAI server as the raw side: the same model and settings, started by vLLM itself.

Weights have no meaning on either side; what is asked is the same (seed, log-probability of each token, token ids), and
the server has the same core to itself, for both of its processes, as the platform's engine has.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
from harness import Report
from rollout_played import EPISODES, Meter, Spent, Words
from rollout_share import Sides, compare, stage

from flexmarl.contracts.specification.team import FactoryModel
from tests.support.engines import VLLM_PYTHON, WORDS
from workers.programs import VLLM_ENVIRONMENT, confined
from workers.rollout.engines.serve_vllm import ROWS
from workers.rollout.engines.vllm_instance import BLOCK
from workers.rollout.engines.vllm_models import CACHE_BYTES, vllm_model

START_S = 300.0
OPTIONS = (
    "--skip-tokenizer-init --load-format dummy --generation-config vllm --dtype float32 --enforce-eager "
    "--logprobs-mode processed_logprobs --no-async-scheduling --disable-log-stats --disable-uvicorn-access-log "
    f"--max-num-seqs {ROWS} --kv-cache-memory-bytes {CACHE_BYTES} --block-size {BLOCK}"
)


class Reply(msgspec.Struct):
    token_ids: list[int]


class Answer(msgspec.Struct):
    choices: list[Reply]


class OwnServer:
    def __init__(self, folder: Path, core: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._model, self.url = str(folder), f"http://127.0.0.1:{port}"
        (folder / "config.json").write_text(json.dumps(vllm_model(FactoryModel(size="M")).sized(WORDS)))
        command = [VLLM_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", self._model, *OPTIONS.split()]
        # Its two processes are what it is made of: only the settings of the platform's one process are left out.
        kept = {k: v for k, v in VLLM_ENVIRONMENT.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, **confined(1), **kept},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.sched_setaffinity(self._process.pid, {core})  # whatever it starts inherits it

    def ready(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(0.5)
        raise RuntimeError("vLLM's own server did not start")

    def raw(self, sides: Sides, tokens: int, commands: int) -> Spent:
        return asyncio.run(self._ask(sides, tokens, commands))

    async def _ask(self, sides: Sides, tokens: int, commands: int) -> Spent:
        await self._complete(sides, tokens, 1)
        meter = Meter([self._process.pid], sides.platform)
        return meter.spent(await self._complete(sides, tokens, commands))

    async def _complete(self, sides: Sides, tokens: int, commands: int) -> int:
        prompts, turns = Words(), sides.platform.team.turns_of(commands)
        how = {"temperature": 1.0, "ignore_eos": True, "logprobs": 0, "return_token_ids": True}
        body = {"model": self._model, "max_tokens": tokens, "return_tokens_as_token_ids": True, **how}
        left = iter(range(turns))

        async def one(session: aiohttp.ClientSession) -> None:
            for seed in left:
                asked = msgspec.json.encode({**body, "prompt": prompts.first(seed), "seed": seed})
                async with session.post("/v1/completions", data=asked) as response:
                    answer = msgspec.json.decode(await response.read(), type=Answer)
                assert len(answer.choices[0].token_ids) == tokens

        headers, connector = {"Content-Type": "application/json"}, aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.url, headers=headers, connector=connector) as session:
            await asyncio.gather(*(one(session) for _ in range(EPISODES)))
        return turns

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def own_server(core: int) -> Iterator[OwnServer]:
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-model-") as folder:
        server = OwnServer(Path(folder), core)
        try:
            server.ready()
            yield server
        finally:
            server.stop()


def vllm_server(report: Report) -> None:
    """Compare the platform on its vLLM engine with raw requests to vLLM's own server."""
    with stage("vllm", {"model": None, "device": "cpu"}) as sides, own_server(sides.core) as server:
        ask = partial(server.raw, sides)
        compare(report, "vllm", "own_server", sides.platform.team, sides.play, ask)
