"""Answers in the shape of the dialect that was spoken, whole and in chunks as they come.

Answers of responses and of messages are those of `flexmarl.language.dialects`. Those of chats and completions may hold
several choices, each with `token_ids`, which OpenAI's do not have; `model` in an answer names the version that
answered, and `system_fingerprint` the digest of its weights.
"""

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson

from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.playground.refusals import body_of, refusal_of
from flexmarl.controlplane.playground.talk import PartialReply, Talk
from flexmarl.language.dialects import chat, messages, responses
from flexmarl.language.dialects.calls import CallAnswer, ModelCall
from flexmarl.language.dialects.dialect import AnswerEvents, Dialect
from flexmarl.language.messages import Message

EVENTS: dict[Dialect, Callable[[ModelCall, CallAnswer], AnswerEvents]] = {
    messages: messages.MessageEvents,
    responses: responses.ResponseEvents,
}


def whole(talk: Talk, dialect: Dialect, replies: list[PartialReply]) -> dict[str, Any]:
    """Return the answer to a question that does not stream."""
    if dialect in EVENTS:
        call, first = _begun(talk)
        return dialect.whole(call, _answered(first, replies[0]))
    shape = Shape(talk)
    choices = [shape.choice(index, reply) for index, reply in enumerate(replies)]
    return {
        **shape.head("chat.completion" if shape.chat else "text_completion"),
        "choices": choices,
        "usage": shape.usage(replies),
    }


async def streamed(talk: Talk, dialect: Dialect, request_id: str) -> AsyncIterator[bytes]:
    """Yield server-sent events: what comes, and the end; a refusal on the way is one too."""
    replies = talk.fresh()
    chunks: Chunks = Shape(talk, request_id) if dialect is chat else OneAnswer(talk, dialect)
    try:
        for event in chunks.opened(len(replies)):
            yield event
        async for part in talk.parts():
            reply = replies[part.index]
            known = len(reply.ids)
            reply.take(part)
            for event in chunks.came(part.index, reply, known):
                yield event
        for event in chunks.ended(replies):
            yield event
    except ProblemError as problem:
        for event in chunks.failed(problem):
            yield event
    if dialect is chat:
        yield b"data: [DONE]\n\n"


class Chunks(Protocol):
    """How an answer is told as it comes."""

    def opened(self, count: int) -> Iterator[bytes]:
        """Yield what stands in front of so many replies."""

    def came(self, index: int, reply: PartialReply, known: int) -> Iterator[bytes]:
        """Yield what came of a reply, of which so many ids were known."""

    def ended(self, replies: list[PartialReply]) -> Iterator[bytes]:
        """Yield what is said when all have ended."""

    def failed(self, problem: ProblemError) -> Iterator[bytes]:
        """Yield why there will be no whole answer."""


class OneAnswer:
    """An answer in a dialect whose answers are one message."""

    def __init__(self, talk: Talk, dialect: Dialect) -> None:
        call, self._first = _begun(talk)
        self._events = EVENTS[dialect](call, self._first)
        self._said = ("", "")

    def opened(self, count: int) -> Iterator[bytes]:
        return self._events.opened()

    def came(self, index: int, reply: PartialReply, known: int) -> Iterator[bytes]:
        if not reply.finish:  # else `ended` says the rest
            thought, words = reply.said
            said = (thought, words if words.strip() else "")  # blanks in front of a call are no message
            thought, words, self._said = _further(self._said, said)
            yield from self._events.more(thought, words)

    def ended(self, replies: list[PartialReply]) -> Iterator[bytes]:
        return self._events.ended(_answered(self._first, replies[0]))

    def failed(self, problem: ProblemError) -> Iterator[bytes]:
        return self._events.failed(refusal_of(problem))


def _further(before: tuple[str, str], after: tuple[str, str]) -> tuple[str, str, tuple[str, str]]:
    """Return what thoughts and words have become longer by, and both. What was said is never taken back."""
    kept = tuple(new if new.startswith(old) else old for old, new in zip(before, after, strict=True))
    return kept[0][len(before[0]) :], kept[1][len(before[1]) :], (kept[0], kept[1])


def _begun(talk: Talk) -> tuple[ModelCall, CallAnswer]:
    """Return the call as it is answered, by an exact version, and an answer that says nothing yet."""
    call = talk.question.call
    assert call is not None
    first = CallAnswer(secrets.token_hex(12), Message("assistant"), "", talk.prompt_tokens, 0, int(time.time()))
    return replace(call, model=talk.model.name), first


def _answered(first: CallAnswer, reply: PartialReply) -> CallAnswer:
    message = _named(reply.message, first.id)
    stopped_at = reply.stopped_at if reply.finish == "stop" else None
    return replace(first, message=message, finish=reply.finish, tokens=reply.sampled, stopped_at=stopped_at)


def _named(message: Message, id: str) -> Message:
    """Return a message whose calls have ids."""
    calls = tuple(replace(one, id=f"call_{id}_{place}") for place, one in enumerate(message.tool_calls))
    return replace(message, tool_calls=calls)


@dataclass
class Shape:
    """Renders one talk; every chunk of it has the same id and time."""

    talk: Talk
    request_id: str = ""

    def __post_init__(self) -> None:
        self.chat = self.talk.question.call is not None
        self._said: dict[int, tuple[str, str]] = {}
        self._id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def head(self, kind: str) -> dict[str, Any]:
        """Return what every answer and chunk begins with."""
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.talk.model.name,
            "system_fingerprint": self.talk.model.digest[:12],
        }

    def usage(self, replies: list[PartialReply]) -> dict[str, int]:
        """Count tokens as the engine did: those that end a reply are among them."""
        made = sum(reply.sampled for reply in replies)
        return chat.usage(self.talk.prompt_tokens, made)

    def choice(self, index: int, reply: PartialReply) -> dict[str, Any]:
        """Return a whole choice."""
        said = {"message": self._message(index, reply) | {"refusal": None}} if self.chat else {"text": reply.text}
        return {"index": index, **said, **self._rest(reply, 0)}

    def opened(self, count: int) -> Iterator[bytes]:
        """Yield the first deltas of a chat's choices: who speaks."""
        delta = {"role": "assistant", "content": ""}
        for index in range(count if self.chat else 0):
            yield self._event([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def came(self, index: int, reply: PartialReply, known: int) -> Iterator[bytes]:
        """Yield what came of a choice."""
        after = reply.said if self.chat else ("", reply.text)
        thought, words, self._said[index] = _further(self._said.get(index, ("", "")), after)
        said: dict[str, Any] = {"text": words}
        if self.chat:
            delta: dict[str, Any] = {"reasoning_content": thought} if thought else {}
            delta |= {"content": words} if words else {}
            if reply.finish and (calls := self._message(index, reply).get("tool_calls")):
                delta["tool_calls"] = chat.numbered(calls)
            said = {"delta": delta}
        yield self._event([{"index": index, **said, **self._rest(reply, known)}])

    def ended(self, replies: list[PartialReply]) -> Iterator[bytes]:
        """Yield the usage, if it was asked for."""
        if self.talk.question.usage_in_stream:
            yield self._event([], usage=self.usage(replies))

    def failed(self, problem: ProblemError) -> Iterator[bytes]:
        """Yield why there will be no whole answer."""
        yield b"data: " + orjson.dumps(body_of(problem, self.request_id)) + b"\n\n"

    def _message(self, index: int, reply: PartialReply) -> dict[str, Any]:
        return chat.said_by(_named(reply.message, f"{self._id.partition('-')[2]}_{index}"))

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        """Return a chunk as a server-sent event."""
        body = {**self.head("chat.completion.chunk" if self.chat else "text_completion"), "choices": choices}
        if self.talk.question.usage_in_stream:
            body["usage"] = usage
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _rest(self, reply: PartialReply, since: int) -> dict[str, Any]:
        logprobs = None
        if self.talk.question.logprobs:
            logprobs = _of_chat(reply, since) if self.chat else _of_completion(reply, since)
        finish = chat.finish_of(reply.message, reply.finish) if self.chat and reply.finish else reply.finish
        return {"logprobs": logprobs, "finish_reason": finish or None, "token_ids": reply.ids[since:]}


def _of_chat(reply: PartialReply, since: int) -> dict[str, Any]:
    content = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, _, logprob in reply.tokens(since)
    ]
    return {"content": content, "refusal": None}


def _of_completion(reply: PartialReply, since: int) -> dict[str, Any]:
    tokens = reply.tokens()
    offsets, at = [], 0
    for text, _, _ in tokens:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": [text for text, _, _ in tokens[since:]],
        "token_logprobs": [logprob for _, _, logprob in tokens[since:]],
        "top_logprobs": None,
        "text_offset": offsets[since:],
    }
