"""Reward functions of other packages, in processes of their own, which may be killed (`workers.line_processes`)."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from workers.line_processes import LineProcesses, NoAnswerInTime, ProcessDied
from workers.rewards.base import Earned, Played, RewardFailed

HOST = "workers.rewards.host"


class _Answer(msgspec.Struct):
    earned: Earned | None = None
    error: str = ""


class IsolatedReward:
    """One per run and worker. `code` is `package.module:function`."""

    def __init__(self, code: str, settings: Mapping[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._processes = LineProcesses(HOST, (code, json.dumps(settings)))

    async def __call__(self, played: Played) -> Earned:
        try:
            return _earned(await self._processes.ask(msgspec.json.encode(played), self._timeout_s))
        except NoAnswerInTime as late:
            raise RewardFailed(f"timeout: no result within {self._timeout_s:g} s", may_pass=True) from late
        except ProcessDied as error:
            raise RewardFailed(f"its process died: {error}", may_pass=True) from error

    async def close(self) -> None:
        """End the processes that compute nothing; whatever is computed ends with its process."""
        await self._processes.close()


def _earned(text: bytes) -> Earned:
    try:
        answer = msgspec.json.decode(text, type=_Answer)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RewardFailed(f"bad_reply: no scores: {error}", may_pass=False) from error
    if answer.earned is None:
        raise RewardFailed(answer.error or "bad_reply: no scores", may_pass=False)
    return answer.earned
