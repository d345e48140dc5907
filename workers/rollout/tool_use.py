"""Tools between what a seat is asked and what it answers: its calls are made, and their results asked on with.

Invariants. The environment sees of a turn only the reply that ends it. What a seat called wrongly, and what a tool says
went wrong, is told to it; a server that is broken fails the attempt. A seat has the same tools in all its turns, since
other ones would break its chain.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flexmarl.contracts.specification.tools import PinnedTool, ToolUse
from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.replies import CALL, CALLED
from workers.rollout.environments.base import Ask, Family, JudgedAnswer, Outcome, Reply
from workers.rollout.isolation.lines import ToolResult
from workers.rollout.isolation.processes import EnvironmentBroke
from workers.rollout.live_episode import LiveEpisode
from workers.rollout.tool_servers import ToolPool, ToolSession
from workers.rollout.tool_urls import UrlToolPool, UrlToolSession

CALLS, ERRORS, USED_UP = "tool_calls", "tool_errors", "tool_turns_used_up"
"""Facts: calls that were made or could not be; those of them that came to an error; turns that ended in a call which
was not made, since none was left."""
MOST_CALLS = 8
"""Calls of one reply."""
FORM = f'{CALL}{{"name": "TOOL", "arguments": {{}}}}{CALLED}'
UNREADABLE = f"Error: the call could not be read. Write {FORM} with one object of JSON that has just these two members."
LAST = "No further call will be made: answer now."


@dataclass(slots=True)
class ToolStage:
    """Where episodes play whose seats may call tools."""

    family: Family[Any]
    use: ToolUse
    pools: tuple[ToolPool | UrlToolPool, ...]
    budgeted: bool = False
    """Whether the team says at most so many tokens in an episode."""
    offered: tuple[tuple[PinnedTool, ...], ...] = ()
    """The tools of each server, once they are known."""

    async def learn(self) -> None:
        """Have every server's tools, before the first prompt that names them. Raises EnvironmentBroke."""
        if not self.offered:
            offered = tuple(await asyncio.gather(*(self._tools_of(place) for place in range(len(self.pools)))))
            names = [frozenset(tool.name for tool in tools) for tools in offered]
            for clash in self.use.clashes(self.family.roles, names):
                raise EnvironmentBroke(f"tools: boot: {clash.detail} {clash.hint}")
            self.offered = offered

    async def _tools_of(self, place: int) -> tuple[PinnedTool, ...]:
        try:
            return await self.pools[place].tools()
        except EnvironmentBroke as broke:
            raise self.broke(place, broke) from broke

    def broke(self, place: int, why: EnvironmentBroke) -> EnvironmentBroke:
        """Return what a broken server is told as."""
        return EnvironmentBroke(f"tools of {self.use.servers[place].title}: {why}")

    def tools_of(self, seat: str) -> tuple[dict[str, Any], ...]:
        """Return what a seat may call, in the form that chat templates read."""
        return tuple(
            tool.function()
            for server, tools in zip(self.use.servers, self.offered, strict=True)
            if server.is_of(seat)
            for tool in tools
        )

    def places_of(self, seat: str) -> dict[str, int]:
        """Return the tools of a seat with the numbers of their servers."""
        return {
            tool.name: place
            for place, (server, tools) in enumerate(zip(self.use.servers, self.offered, strict=True))
            if server.is_of(seat)
            for tool in tools
        }

    async def around(self, inner: LiveEpisode) -> "CallingEpisode":
        """Give the seats of an episode tools. Raises EnvironmentBroke where they cannot be known."""
        await self.learn()
        return CallingEpisode(inner, self, inner.task)

    async def close(self) -> None:
        """End what episodes used."""
        await self.family.close()
        for pool in self.pools:
            await pool.close()


@dataclass(slots=True)
class _Turn:
    """A turn of a seat, from what its environment asks to the reply that ends it."""

    asked: Ask
    """By the environment."""
    ask: Ask
    """What the seat is asked next."""
    left: int
    """Replies with calls that it may still give."""
    tokens: int = 0
    """Said before."""
    reply: Reply | None = None
    """Which ends it."""


@dataclass(slots=True)
class CallingEpisode:
    """An episode whose seats may call tools."""

    inner: LiveEpisode
    stage: ToolStage
    task: dict[str, object]
    _turns: list[_Turn] = field(default_factory=list)
    """What the environment asks now."""
    _sessions: dict[int, ToolSession | UrlToolSession] = field(default_factory=dict)
    """By the number of the server."""
    _said: Counter[str] = field(default_factory=Counter)
    """Replies of each seat."""
    _ends: dict[str, list[int]] = field(default_factory=dict)
    """Of each seat, by turns as the environment counts them: which of its replies ended it."""
    _facts: dict[str, float] = field(default_factory=lambda: dict.fromkeys((CALLS, ERRORS, USED_UP), 0.0))

    def asks(self) -> list[Ask]:
        """Return who must act now; empty when the episode is over."""
        if not self._turns:
            use = self.stage.use
            for asked in self.inner.asks():
                tools = self.stage.tools_of(asked.role)
                ask = replace(asked, tools=(*asked.tools, *tools)) if tools else asked
                self._turns.append(_Turn(asked, ask, use.turns if tools else -1))
        return [turn.ask for turn in self._turns if turn.reply is None]

    async def score(self, replies: list[Reply]) -> None:
        """Have the replies that end the turns scored, once there are all. Raises RewardMissing."""
        if all(self._ends_turn(turn, reply) for turn, reply in self._heard(replies)):
            await self.inner.score(self._final(replies))

    async def act(self, replies: list[Reply]) -> None:
        """Make the calls of replies, or move on. Raises EnvironmentBroke for a server that is broken."""
        heard = self._heard(replies)
        calling = [(turn, reply) for turn, reply in heard if not self._ends_turn(turn, reply)]
        final = self._final(replies)
        for turn, reply in heard:
            self._said[reply.role] += 1
            if self._ends_turn(turn, reply):
                self._facts[USED_UP] += float(turn.left >= 0 and _calls(reply))
                turn.reply = replace(reply, tokens=turn.tokens + reply.tokens)
        for turn, reply in calling:
            turn.left -= 1
            most = self._most(turn, reply)
            turn.tokens += reply.tokens
            messages = await self._answered(turn, reply)
            turn.ask = replace(turn.ask, messages=messages, max_tokens=most, fresh=False, broken="")
        if not calling:
            for turn in self._turns:
                self._ends.setdefault(turn.asked.role, []).append(self._said[turn.asked.role] - 1)
            self._turns = []
            await self.inner.act(final)

    def _heard(self, replies: Sequence[Reply]) -> list[tuple[_Turn, Reply]]:
        return list(zip((turn for turn in self._turns if turn.reply is None), replies, strict=True))

    def _final(self, replies: Sequence[Reply]) -> list[Reply]:
        """Return the replies that end the turns, where `replies` are the last of them."""
        new = iter(replies)
        return [turn.reply or replace(one := next(new), tokens=turn.tokens + one.tokens) for turn in self._turns]

    def _ends_turn(self, turn: _Turn, reply: Reply) -> bool:
        return turn.left <= 0 or not _calls(reply) or self._most(turn, reply) <= 0

    def _most(self, turn: _Turn, reply: Reply) -> int:
        """Return the most tokens of a seat's next reply; in a team with a budget they share what one may have."""
        most = turn.asked.max_tokens
        return most - turn.tokens - reply.tokens if self.stage.budgeted else most

    async def _answered(self, turn: _Turn, reply: Reply) -> tuple[Message, ...]:
        """Return what a seat is told that its calls came to."""
        calls = reply.message.tool_calls if reply.message else ()
        self._facts[CALLS] += max(len(calls), 1)
        results = await self._made(turn.ask.role, calls[:MOST_CALLS]) if calls else [_error(UNREADABLE)]
        refused = f"Error: not called; a reply may have at most {MOST_CALLS} calls."
        results += [_error(refused) for _ in calls[MOST_CALLS:]]
        self._facts[ERRORS] += sum(result.failed for result in results)
        texts = [self._told(result) for result in results]
        if turn.left == 0:
            texts[-1] += f"\n\n{LAST}"
        ids = [call.id for call in calls] or [""]
        return tuple(Message("tool", text, tool_call_id=id_) for text, id_ in zip(texts, ids, strict=True))

    async def _made(self, seat: str, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Make calls, those of one server one after the other. Raises EnvironmentBroke."""
        results: list[ToolResult | None] = [None] * len(calls)
        places: dict[int, list[int]] = {}
        offered = self.stage.places_of(seat)
        for place, call in enumerate(calls):
            if (server := offered.get(call.name)) is None:
                known = f"There are: {', '.join(sorted(offered))}."
                results[place] = _error(f"Error: there is no tool {call.name[:64]}. {known}")
            else:
                places.setdefault(server, []).append(place)
        said = await asyncio.gather(
            *(self._asked(server, [calls[place] for place in own]) for server, own in places.items())
        )
        for own, answers in zip(places.values(), said, strict=True):
            for place, answer in zip(own, answers, strict=True):
                results[place] = answer
        return [result for result in results if result is not None]

    async def _asked(self, server: int, calls: list[ToolCall]) -> list[ToolResult]:
        """Make calls of one server, in the session of this episode."""
        try:
            if server not in self._sessions:
                self._sessions[server] = await self.stage.pools[server].begin()
            return await self._sessions[server].call(calls)
        except EnvironmentBroke as broke:
            raise self.stage.broke(server, broke) from broke

    def _told(self, result: ToolResult) -> str:
        """Return a result as its seat reads it."""
        text = result.text
        if result.failed and not text.lower().startswith("error"):
            text = f"Error: {text or 'the tool says nothing more'}"
        if result.characters > len(result.text):
            text += f"\n[cut off: {len(result.text)} of {result.characters} characters]"
        return text

    def outcome(self) -> Outcome:
        """Return the account, in which turns are counted as seats were asked; only when `asks` is empty."""
        outcome = self.inner.outcome()
        return replace(
            outcome,
            turn_rewards={
                (role, self._ends[role][turn]): reward for (role, turn), reward in outcome.turn_rewards.items()
            },
            facts={**outcome.facts, **self._facts},
            judged=tuple(self._judged(one) for one in outcome.judged),
        )

    def _judged(self, one: JudgedAnswer) -> JudgedAnswer:
        return replace(one, turn=self._ends[one.role][one.turn])

    def leave(self, reason: str = "") -> None:
        """Let go of the environment and of every session."""
        for session in self._sessions.values():
            session.leave()
        self.inner.leave(reason)


def _calls(reply: Reply) -> bool:
    """Say whether a reply calls tools, or tries to: one that was cut off in a call has said nothing whole."""
    if reply.message is not None and reply.message.tool_calls:
        return True
    return reply.finish == "stop" and CALL in reply.text


def _error(text: str) -> ToolResult:
    return ToolResult(text, len(text), True)
