"""The two protocols of NeMo Gym's resources servers: what a server is told of a reply, and what its answers mean.

Invariants: the server is sent the row as it was imported, and what the agent said as OpenAI's Responses API has it; a
reward that is absent, no number or no finite one is never 0.
Source: `SimpleAgent` and `GymnasiumAgent` of the package nemo-gym, versions 0.4 and 0.7.
"""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flexmarl.language.dialects import responses
from flexmarl.language.dialects.calls import CallAnswer, ModelCall
from flexmarl.language.gym_rows import REQUEST, GymTask
from flexmarl.language.messages import Message, ToolCall
from workers.external_access import SAID, ExternalError, ExternalFailure
from workers.packages.inside.shapes import NoReward, NotFinite, ProgramFault
from workers.rollout.environments.base import Reply
from workers.rollout.nemo_gym_wire import GymSession, storable

RESERVED = frozenset({"verify", "seed_session", "close_session", "aggregate_metrics", "reverify_mode", "mcp"})
"""Endpoints of a server that are no tools."""
FAULT = 500
"""Status of an endpoint that raised; a higher one is not of the server."""
CALLS, ERRORS = "tool_calls", "tool_errors"
MOST_COMPONENTS = 64
_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_COMPONENT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class GymPlay(Protocol):
    """An episode with a server, in one of its protocols."""

    talk: "GymTalk"
    over: bool
    """The server is not asked for another move."""

    async def begin(self) -> tuple[Message, ...]:
        """Begin, and return what the agent reads first."""

    async def act(self, reply: Reply) -> tuple[Message, ...]:
        """Take a reply, and return what the agent is told of it."""

    async def score(self) -> "GymScore":
        """Return what the episode came to. Raises NoReward, NotFinite and ProgramFault where that is not known."""

    async def close(self) -> None:
        """Let go of what the server holds."""


@dataclass(frozen=True, slots=True)
class GymScore:
    reward: float
    turns: dict[int, float]
    """Reward of single turns; their sum is the reward."""
    facts: dict[str, float]


@dataclass(slots=True)
class GymTalk:
    """What an agent said, as answers of the Responses API."""

    call: ModelCall
    name: str
    """Of the episode, for ids."""
    items: list[dict[str, Any]] = field(default_factory=list)
    """All output so far: what the agent said, and what it was told."""
    _last: dict[str, Any] = field(default_factory=dict)
    _read: int = 0
    _made: int = 0
    _turn: int = 0

    def heard(self, reply: Reply) -> tuple[dict[str, Any], tuple[ToolCall, ...]]:
        """Return a reply as an answer of its own, and its calls with their ids."""
        said = reply.message or Message("assistant", reply.text)
        calls = tuple(
            replace(call, id=call.id or f"call_{self.name}_{self._turn}_{place}")
            for place, call in enumerate(said.tool_calls)
        )
        answer = CallAnswer(
            f"{self.name}_{self._turn}", replace(said, tool_calls=calls), reply.finish, reply.prompt_tokens,
            reply.tokens, int(time.time()),
        )  # fmt: skip
        self._last = responses.whole(self.call, answer)
        self._last["output"] = [_summed_up(item) for item in self._last["output"]]
        self.items += self._last["output"]
        self._read += reply.prompt_tokens
        self._made += reply.tokens
        self._turn += 1
        return self._last, calls

    def told(self, call_id: str, output: str) -> None:
        """Note the result of a call."""
        self.items.append({"type": "function_call_output", "call_id": call_id, "output": output})

    def whole(self) -> dict[str, Any]:
        """Return the answer that all of the episode is."""
        usage = {
            **self._last["usage"], "input_tokens": self._read, "output_tokens": self._made,
            "total_tokens": self._read + self._made,
        }  # fmt: skip
        return {**self._last, "output": self.items, "usage": usage}


def _summed_up(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item in NeMo Gym's form, which has thoughts as their summary."""
    if item["type"] != "reasoning":
        return item
    summary = [{"type": "summary_text", "text": part["text"]} for part in item["content"]]
    return {"id": item["id"], "type": "reasoning", "summary": summary}


@dataclass(slots=True)
class ToolPlay:
    """Calls of tools until a reply calls none; then the server verifies all of it."""

    task: GymTask
    session: GymSession
    talk: GymTalk
    over: bool = False
    _counts: dict[str, float] = field(default_factory=lambda: {CALLS: 0.0, ERRORS: 0.0})
    _turns: int = 0

    async def begin(self) -> tuple[Message, ...]:
        """Raises ProgramFault where a tool has the name of another endpoint."""
        for name in tool_names(self.task.call.tools):
            if name in RESERVED or not _TOOL.fullmatch(name):
                raise ProgramFault(f"its row offers a tool named {name[:80]}, which no tool can have")
        await self.session.object("/seed_session", self.task.row)
        return self.task.call.messages

    async def act(self, reply: Reply) -> tuple[Message, ...]:
        answer, calls = self.talk.heard(reply)
        self._turns += 1
        self.over = not calls or answer["incomplete_details"] is not None
        return () if self.over else tuple([await self._result(call) for call in calls])

    async def _result(self, call: ToolCall) -> Message:
        self._counts[CALLS] += 1
        known = tool_names(self.task.call.tools)
        if call.name in known:
            answer = await self.session.ask(f"/{call.name}", call.arguments)
            if answer.status > FAULT:
                told = f"status {answer.status} at /{call.name}: {answer.text[:SAID]}"
                raise ExternalError(ExternalFailure.SERVER_ERROR, told)
            text, failed = answer.text, answer.status >= 400
        else:
            text, failed = f"There is no tool {call.name}. Tools: {', '.join(known) or 'none'}.", True
        self._counts[ERRORS] += failed
        self.talk.told(call.id, text)
        return Message("tool", text, tool_call_id=call.id)

    async def score(self) -> GymScore:
        said = await self.session.object("/verify", {**self.task.row, "response": self.talk.whole()})
        if said.get("mask_sample") is True:
            why = ": ".join(str(said[name]) for name in ("failure_kind", "failure_reason") if said.get(name))
            raise NoReward(f"none: the server says that its reward counts for nothing: {why[:300] or 'no reason'}")
        reward = reward_of(said, "/verify")
        facts = {**components(said, {*self.task.row, "response"}), **self._counts}
        return GymScore(reward, {self._turns - 1: reward}, facts)

    async def close(self) -> None:
        """Do nothing: the protocol has no end of a session."""


@dataclass(slots=True)
class GymnasiumPlay:
    """Each reply is a step, until the server says that the episode is over."""

    task: GymTask
    session: GymSession
    talk: GymTalk
    over: bool = False
    _closes: bool = False
    """The server says that it has an end of a session."""
    _rewards: list[float] = field(default_factory=list)

    async def begin(self) -> tuple[Message, ...]:
        said = await self.session.object("/reset", self.task.row)
        info = said.get("info")
        self._closes = isinstance(info, Mapping) and info.get("supports_explicit_close") is True
        return (*self.task.call.messages, *_observed(said, "/reset"))

    async def act(self, reply: Reply) -> tuple[Message, ...]:
        answer, _ = self.talk.heard(reply)
        said = await self.session.object("/step", {**self.task.row, "response": answer})
        self._rewards.append(reward_of(said, "/step"))
        ended = [said.get(name, False) for name in ("terminated", "truncated")]
        if not all(isinstance(one, bool) for one in ended):
            raise ProgramFault("garbage: terminated and truncated of /step are not true or false")
        self.over = any(ended)
        if self.over:
            return ()
        told = (*_results(said), *_observed(said, "/step"))
        if not told:
            raise ProgramFault("garbage: the episode goes on, and its answer to /step tells the agent nothing")
        return told

    async def score(self) -> GymScore:
        total = _finite(sum(self._rewards), "the sum of rewards")
        return GymScore(total, dict(enumerate(self._rewards)), {})

    async def close(self) -> None:
        if self._closes:
            await self.session.object("/close", {})


PROTOCOLS: dict[str, type[ToolPlay] | type[GymnasiumPlay]] = {"tools": ToolPlay, "gymnasium": GymnasiumPlay}


def tool_names(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of tools, in their order."""
    return tuple(tool["function"]["name"] for tool in tools)


def reward_of(said: Mapping[str, Any], path: str) -> float:
    """Return a reward. Raises NoReward, ProgramFault and NotFinite."""
    reward = said.get("reward")
    if reward is None:
        raise NoReward(f"none: the answer to {path} has no reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ProgramFault(f"garbage: the reward of {path} is no number")
    return _finite(reward, f"the reward of {path}")


def components(said: Mapping[str, Any], sent: set[str]) -> dict[str, float]:
    """Return the numbers that a verdict has beside its reward: new fields, and the members of `reward_components`.

    `sent`: fields that the verdict only repeats. Raises NotFinite.
    """
    named = said.get("reward_components")
    fields = {**said, **(named if isinstance(named, Mapping) else {})}
    left_out = sent | {REQUEST, "reward", "mask_sample"}
    found = {
        name: _finite(value, name)
        for name, value in fields.items()
        if name not in left_out and isinstance(value, int | float) and _COMPONENT.fullmatch(name)
    }
    return dict(list(found.items())[:MOST_COMPONENTS])


def _finite(value: float, name: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise NotFinite(f"nonfinite: {name} is {number}, not a finite number")
    return number


def _observed(said: Mapping[str, Any], path: str) -> tuple[Message, ...]:
    """Return an observation as the message of a user. Raises ProgramFault."""
    text = said.get("observation")
    if text is not None and not isinstance(text, str):
        raise ProgramFault(f"garbage: the observation of {path} is no text")
    return (Message("user", storable(text)),) if text else ()


def _results(said: Mapping[str, Any]) -> list[Message]:
    """Return results of calls that a step made. Raises ProgramFault."""
    info = said.get("info")
    given = info.get("tool_outputs") if isinstance(info, Mapping) else None
    found = []
    for one in given or ():
        if not isinstance(one, Mapping) or not isinstance(one.get("call_id"), str):
            raise ProgramFault("garbage: info.tool_outputs of /step has a result without the call_id of a call")
        output = one.get("output")
        text = output if isinstance(output, str) else json.dumps(output)
        found.append(Message("tool", storable(text), tool_call_id=one["call_id"]))
    return found
