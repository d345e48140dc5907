"""Reward functions of other packages, in processes of their own.

Invariants: a process computes one reward at a time; one that misses its time, or that nobody waits for any more, is
killed and touches nothing else: neither play, which shares no interpreter with it, nor other rewards. Processes get no
credentials, are started when they are needed, and end with their worker.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from typing import Any

import msgspec

from workers.children import child_environment
from workers.rewards.base import Earned, Played, RewardFailed

HOST = "workers.rewards.host"
PROCESSES = os.cpu_count() or 1
"""Of one run in one worker: more would only share the same processors."""
MOST_LINE = 2**24
"""Bytes of an answer."""


class _Answer(msgspec.Struct):
    earned: Earned | None = None
    error: str = ""


class IsolatedReward:
    """One per run and worker. `code` is `package.module:function`."""

    def __init__(self, code: str, settings: Mapping[str, Any], timeout_s: float) -> None:
        self._code, self._settings, self._timeout_s = code, json.dumps(settings), timeout_s
        self._places = asyncio.Semaphore(PROCESSES)
        self._resting: list[Process] = []

    async def __call__(self, played: Played) -> Earned:
        async with self._places:
            process = await self._process()
            text = b""
            try:
                async with asyncio.timeout(self._timeout_s):
                    text = await _asked(process, msgspec.json.encode(played))
            except TimeoutError as late:
                raise RewardFailed(f"timeout: no result within {self._timeout_s:g} s", may_pass=True) from late
            except ConnectionError as error:
                raise RewardFailed(f"its process died: {error}", may_pass=True) from error
            finally:
                if text:
                    self._resting.append(process)
                elif process.returncode is None:
                    process.kill()
        return _earned(text)

    async def close(self) -> None:
        """End the processes that compute nothing; whatever is computed ends with its process."""
        for process in self._resting:
            if process.returncode is None:
                process.kill()
                await process.wait()
        self._resting.clear()

    async def _process(self) -> Process:
        while self._resting:
            process = self._resting.pop()
            if process.returncode is None:
                return process
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.adopted", HOST, self._code, self._settings,
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=MOST_LINE,
            env=child_environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}),
        )  # fmt: skip


async def _asked(process: Process, body: bytes) -> bytes:
    """Send an episode and wait for the answer. Raises ConnectionError when the process is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(body + b"\n")
    await process.stdin.drain()
    try:
        text = await process.stdout.readline()
    except ValueError as error:  # longer than a line may be: nothing can be read of it
        raise ConnectionResetError("its answer does not end") from error
    if not text.endswith(b"\n"):
        raise ConnectionResetError("without an answer")
    return text


def _earned(text: bytes) -> Earned:
    try:
        answer = msgspec.json.decode(text, type=_Answer)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RewardFailed(f"bad_reply: no scores: {error}", may_pass=False) from error
    if answer.earned is None:
        raise RewardFailed(answer.error or "bad_reply: no scores", may_pass=False)
    return answer.earned
