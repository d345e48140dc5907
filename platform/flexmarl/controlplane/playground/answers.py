"""Answers in OpenAI's shapes, of chats and of completions, whole and in chunks.

Beyond OpenAI's members a choice has `token_ids`; `model` in an answer names the version that answered, and
`system_fingerprint` the digest of its weights.
"""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson

from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.playground.refusals import body_of
from flexmarl.controlplane.playground.talk import PartialReply, Talk


def whole(talk: Talk, replies: list[PartialReply]) -> dict[str, Any]:
    """Return the answer to a question that does not stream."""
    shape = Shape(talk)
    choices = [shape.choice(index, reply) for index, reply in enumerate(replies)]
    return {
        **shape.head("chat.completion" if shape.chat else "text_completion"),
        "choices": choices,
        "usage": shape.usage(replies),
    }


async def streamed(talk: Talk, request_id: str) -> AsyncIterator[bytes]:
    """Yield server-sent events: what comes, usage if asked for, and the end; a refusal on the way is one too."""
    shape, replies = Shape(talk), talk.fresh()
    said = ["" for _ in replies]
    try:
        if shape.chat:
            for index in range(len(replies)):
                yield shape.event([shape.opening(index)])
        async for part in talk.parts():
            reply = replies[part.index]
            known = len(reply.ids)
            reply.take(part)
            text = reply.text if reply.text.startswith(said[part.index]) else said[part.index]
            new, said[part.index] = text[len(said[part.index]) :], text
            yield shape.event([shape.delta(part.index, reply, new, known)])
        if talk.question.usage_in_stream:
            yield shape.event([], usage=shape.usage(replies))
    except ProblemError as problem:
        yield b"data: " + orjson.dumps(body_of(problem, request_id)) + b"\n\n"
    yield b"data: [DONE]\n\n"


@dataclass
class Shape:
    """Renders one talk; every chunk of it has the same id and time."""

    talk: Talk

    def __post_init__(self) -> None:
        self.chat = self.talk.question.chat
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
        prompt = self.talk.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}

    def choice(self, index: int, reply: PartialReply) -> dict[str, Any]:
        """Return a whole choice."""
        said = (
            {"message": {"role": "assistant", "content": reply.text, "refusal": None}}
            if self.chat
            else {"text": reply.text}
        )
        return {"index": index, **said, **self._rest(reply, 0)}

    def opening(self, index: int) -> dict[str, Any]:
        """Return the first delta of a chat's choice: who speaks."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, reply: PartialReply, new: str, since: int) -> dict[str, Any]:
        """Return what came of a choice since a position."""
        said: dict[str, Any] = {"delta": {"content": new} if new else {}} if self.chat else {"text": new}
        return {"index": index, **said, **self._rest(reply, since)}

    def event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        """Return a chunk as a server-sent event."""
        body = {**self.head("chat.completion.chunk" if self.chat else "text_completion"), "choices": choices}
        if self.talk.question.usage_in_stream:
            body["usage"] = usage
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _rest(self, reply: PartialReply, since: int) -> dict[str, Any]:
        logprobs = None
        if self.talk.question.logprobs:
            logprobs = _of_chat(reply, since) if self.chat else _of_completion(reply, since)
        return {"logprobs": logprobs, "finish_reason": reply.finish or None, "token_ids": reply.ids[since:]}


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
