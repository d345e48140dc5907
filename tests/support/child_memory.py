"""What an engine and a trainer take at their peak, as their node starts them: a setting of a run, and its figures.

The children do what a run asks of them: a trainer binds its policies and takes steps on full passes; an engine loads
version after version and replies to as many prompts at once as the setting says.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import psutil

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.simulator.prediction import memory
from flexmarl.simulator.prediction.memory_loads import PASS_TOKENS, MemoryLoad
from tests.support.engine_child import start_engine
from tests.support.trainer_child import bind, start_trainer
from workers.programs import confined
from workers.training.wire import AccumulateReply, AccumulateRequest, StepReply, StepRequest, TrainRow
from workers.transfer.local import LocalTier

VERSIONS = 3


@dataclass(frozen=True)
class Setting:
    """A run, and what it asks for at once."""

    policy: Mapping[str, Any]
    policies: Sequence[str] = ("solver",)
    prompt: int = 52
    reply: int = 12
    rows: int = 32
    """Of a micro-batch, and of the replies of a policy in generation at once."""
    words: int = 500
    """Ids that prompts and replies are made of."""
    chats: bool = True
    """Whether the model has a chat template; one without is not the torch engine's, and plays with closed words."""

    @property
    def spec(self) -> ExperimentSpec:
        roles = ("solver", "reviser") if self.chats else ("speaker", "listener")
        return ExperimentSpec.model_validate(
            {
                "agents": {name: {"policy": name if name in self.policies else self.policies[0]} for name in roles},
                "environment": {"type": "sums" if self.chats else "reference_game"},
                "policies": dict.fromkeys(self.policies, self.policy),
                "resources": {"engine": "torch" if self.chats else "vllm"},
            }
        )

    @property
    def asked(self) -> MemoryLoad:
        """Return what a plan would say if it knew what is asked for."""
        length = self.prompt + self.reply
        tokens = self.rows * length
        passes = ceil(tokens / PASS_TOKENS)
        return MemoryLoad.exactly(rows=self.rows, positions=length, tokens=tokens / passes)

    def counted(self, use: str) -> float:
        """Return the bytes that a plan counts for a device of a use."""
        spec, asked = self.spec, dict.fromkeys(self.policies, self.asked)
        holds = {"engine": memory.engine, "trainer": memory.trainer}[use]
        return holds(spec, self.policies, memory.parameters_of(spec, {}), asked).total("likely")


@contextmanager
def peak_of(pid: int) -> Iterator[dict[str, int]]:
    """Note the most bytes that a process had in memory until the end."""
    found: dict[str, int] = {}
    yield found
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    found["peak"] = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    found["rest"] = psutil.Process(pid).memory_info().rss


def trained(setting: Setting, home: Path, roots: tuple[str, ...] = ()) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Let a trainer take steps; return its figures, and the digests of each policy's versions."""
    child = start_trainer(home, 1, setting.spec.model_dump(mode="json"), life=int(time.time()), roots=roots)
    rng, digests, held = np.random.default_rng(0), {}, LocalTier(home, "engines")
    try:
        with peak_of(child.process.pid) as found:
            for policy in setting.policies:
                digests[policy] = [bind([child], policy).digest]
                held.claim(digests[policy][0])
            for version in range(VERSIONS - 1):
                for policy in setting.policies:
                    epoch = f"{version}:{child.incarnation}"
                    rows = [_row(rng, setting) for _ in range(setting.rows)]
                    child.ask("/accumulate", AccumulateRequest(policy, epoch, 0, 0.0, rows), AccumulateReply)
                    step = StepRequest(policy, epoch, [0], version + 1, 1e-5)
                    digests[policy].append(child.ask("/step", step, StepReply).digest)
                    held.claim(digests[policy][-1])
        return found, digests
    finally:
        child.stop()


def served(setting: Setting, home: Path, digests: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Let an engine serve version after version; return its figures."""
    os.environ |= confined(1)
    child = start_engine(home, "e1.1.1", setting.spec.model_dump(mode="json"))
    try:
        with peak_of(child.process.pid) as found:
            asyncio.run(_play(setting, child.url, digests))
        return found
    finally:
        assert child.process.stdin is not None
        child.process.stdin.close()
        child.process.wait(60)


async def _play(setting: Setting, url: str, digests: Mapping[str, Sequence[str]]) -> None:
    rng = np.random.default_rng(0)
    headers, patience = {"Authorization": "Bearer secret"}, aiohttp.ClientTimeout(600)
    async with aiohttp.ClientSession(headers=headers, timeout=patience) as session:

        async def ask(path: str, body: dict[str, object]) -> None:
            async with session.post(url + path, data=msgspec.json.encode(body)) as response:
                assert response.status == 200, await response.read()

        for version in range(VERSIONS):
            for policy, named in digests.items():
                load = {"policy": policy, "version": version, "digest": named[version], "keeps": [version - 1]}
                await ask("/load", load)
            asked = [
                {
                    "model": policy, "version": version, "max_tokens": setting.reply,
                    "seeds": list(range(setting.rows)),
                    "prompt": rng.integers(3, setting.words, (setting.rows, setting.prompt)).tolist(),
                }
                for policy in digests
            ]  # fmt: skip
            await asyncio.gather(*(ask("/v1/completions", body) for body in asked))


def _row(rng: np.random.Generator, setting: Setting) -> TrainRow:
    prompt, reply = (rng.integers(3, setting.words, count).astype("<i4") for count in (setting.prompt, setting.reply))
    return TrainRow(
        prompt=prompt.tobytes(),
        response=reply.tobytes(),
        logprobs=np.full(setting.reply, -3.0, "<f4").tobytes(),
        allowed=b"",
        temperature=1.0,
        advantages=[float(rng.standard_normal())],
        weight=1.0,
    )
