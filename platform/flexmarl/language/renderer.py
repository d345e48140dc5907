"""Messages to token ids and back, by a model's own chat template.

Invariants. `bridge` returns the ids that turn a prompt and what was sampled behind it into the next prompt, or says why
there are none: sampled ids are never rendered again, so the next prompt begins with exactly what the engine saw. A
bridge is given only where the template writes the history so far letter by letter as it stood before, and of the last
reply all that it said (`replies.same`): how blanks and JSON stood there is what the sampled ids say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.plain_tools import in_words
from flexmarl.language.replies import (
    THINK,
    THOUGHT,
    ReplyMarks,
    certain,
    closed,
    message_of,
    read,
    same,
    thought_marks,
)  # fmt: skip
from flexmarl.language.templates import TemplateError, reads_tools, render_text

LONG = 2**16
"""Characters of a text whose ids are worth a thread: a hundredth of a second, in which a tokenizer holds the
interpreter unless it is asked for a batch."""


class Break(StrEnum):
    """Why no bridge leads to the next prompt."""

    THOUGHTS_REWRITTEN = "thoughts_rewritten"
    """The template leaves out thoughts or their marks, or closes one that was not closed."""
    HISTORY_REWRITTEN = "history_rewritten"
    """It writes otherwise what was there before the reply; so also when the tools have changed."""
    REPLY_REWRITTEN = "reply_rewritten"
    """It writes otherwise what the reply said."""
    TURN_NOT_CLOSED = "turn_not_closed"
    """It shows no id of the model that ends the reply."""
    OTHER_END = "other_end"
    """The reply ended with another id than the one that the template ends it with."""
    SHORTENED = "shortened"
    """The conversation became longer than its seat may read, and its oldest messages were left out."""
    OTHER_HISTORY = "other_history"
    """A program asked with a history that no conversation of its seat has: a summary, a sub-agent, or something new."""
    EACH_CALL = "each_call"
    """The call goes on with its conversation, and the run makes a row of each call."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """The way to the next prompt."""

    text: str
    """The next prompt as the template writes it."""
    ids: tuple[int, ...] = ()
    """What follows the sampled ids; empty where there is a break."""
    broken: Break | None = None


class Renderer:
    """Renders conversations for one model."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatFormat) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._ends = tuple(tokenizer.decode([stop], skip_special_tokens=False) for stop in chat.stop)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._chat.stop

    @property
    def thinks_first(self) -> bool:
        """Whether a reply begins within a thought, which the prompt has opened."""
        return self._marks.thoughts and self._marks.thinking

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> tuple[int, ...]:
        """Return the prompt ids of a conversation, which end where the assistant begins to speak."""
        return self.encode(self.text(messages, tools))

    def text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
        """Return the prompt of a conversation as the template writes it. Raises TemplateError."""
        return self._written(messages, tools, reply=True)

    def demonstrated(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> tuple[int, ...]:
        """Return the ids that a model samples which says the last message, an assistant's, and ends its turn.

        They are what the template writes of it behind the prompt of those before, with the end that stands there. Where
        that is not all of its words (some templates drop thoughts), or no end is shown, they are its words themselves,
        and the model's first end. Raises TemplateError.
        """
        prompt, whole = self.text(messages[:-1], tools), self._written(messages, tools, reply=False)
        tail = whole[len(prompt) :] if whole.startswith(prompt) else ""
        place, end = max(((tail.rfind(text), text) for text in self._ends if text), default=(-1, ""))
        words = messages[-1].content.strip()
        stop = self.stop_ids[:1] if place < 0 else (self.stop_ids[self._ends.index(end)],)
        if place < 0 or words not in tail[:place]:
            opened = self.thinks_first and words.startswith(THINK)
            return self.encode(words.removeprefix(THINK).lstrip("\n") if opened else words) + stop
        return self.encode(tail[:place]) + stop

    def _written(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, reply: bool) -> str:
        chat, template = self._chat, self._chat.template
        if not reads_tools(template):
            messages, tools = in_words(messages, tools), ()
        if "reasoning_content" not in template:
            messages = [_aloud(message) if message.reasoning else message for message in messages]
        return render_text(template, messages, tools=tools, special=chat.special, settings=chat.settings, reply=reply)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a prompt's text. A long one lets other threads of this process work meanwhile."""
        if len(text) < LONG:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return tuple(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def parse(self, ids: Sequence[int]) -> Message:
        """Return what was said by sampled ids, without the id that ends the turn."""
        return self.message(self._said(ids))

    def message(self, said: str) -> Message:
        """Return a reply, of which special tokens are part."""
        return message_of(read(said, self._marks))

    def certain(self, said: str) -> tuple[str, str]:
        """Return thoughts and words of a reply that goes on: its message begins with them."""
        return certain(said, self._marks)

    def bridge(
        self, prompt: str, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> Bridge:
        """Return what follows `sampled`, which answered `prompt`, in the conversation `messages` that has gone on.

        `prompt` is the text that the template wrote when the reply was asked for.
        """
        whole, said = self.text(messages, tools), self._said(sampled)
        end = sampled[-1] if sampled and sampled[-1] in self.stop_ids else None
        found = self._behind(prompt, whole, said, cut=end is None)
        if isinstance(found, Break):
            return Bridge(whole, broken=found)
        ids = self.encode(found)
        if end is None:
            return Bridge(whole, ids)
        return Bridge(whole, ids[1:]) if ids[:1] == (end,) else Bridge(whole, broken=Break.OTHER_END)

    def _behind(self, prompt: str, whole: str, said: str, *, cut: bool) -> str | Break:
        """Return what the template writes behind a reply; with `cut` it was cut off, else its end was sampled."""
        parts = read(said, self._marks)
        if not whole.startswith(prompt):
            return self._cause(prompt, whole, said, Break.HISTORY_REWRITTEN)
        tail = whole[len(prompt) :]
        exact = tail.startswith(said)
        end = self._end(tail, len(said) if exact else 0)
        if end < 0:
            return Break.TURN_NOT_CLOSED
        written = read(tail[:end], self._marks)
        if same(parts, written):
            return tail[end:]
        if cut and same(closed(parts), written):  # what closes the thought that was cut off is the template's
            return tail[len(said) if exact else len(tail[: tail.find(THOUGHT)].rstrip()) :]
        return self._cause(prompt, whole, said, Break.REPLY_REWRITTEN)

    def _cause(self, prompt: str, whole: str, said: str, otherwise: Break) -> Break:
        """Return THOUGHTS_REWRITTEN where other marks of thoughts stand in the whole than in prompt and reply."""
        stood = thought_marks(prompt) + thought_marks(said) + thought_marks(self._generation)
        return Break.THOUGHTS_REWRITTEN if stood != thought_marks(whole) else otherwise

    def _end(self, text: str, start: int) -> int:
        """Return where the first end of a turn stands in a text; -1: nowhere."""
        return min((place for end in self._ends if (place := text.find(end, start)) >= 0), default=-1)

    def _said(self, ids: Sequence[int]) -> str:
        ended = bool(ids) and ids[-1] in self.stop_ids
        return self._tokenizer.decode(list(ids[:-1] if ended else ids), skip_special_tokens=False)

    @cached_property
    def _marks(self) -> ReplyMarks:
        return ReplyMarks(
            thoughts=THOUGHT in self._chat.template,
            calls=self._writes_calls(),
            thinking=self._generation.rstrip().endswith(THINK),
        )

    def _writes_calls(self) -> bool:
        """Whether a call stands in the prompt as calls are read from replies."""
        call = ToolCall("find", {"all": True})
        try:
            text = self.text((Message("user", "?"), Message("assistant", tool_calls=(call,))))
        except TemplateError:
            return False
        return call in read(text, ReplyMarks(calls=True))

    @cached_property
    def _generation(self) -> str:
        """By what the template makes the assistant speak."""
        asked, chat = (Message("user", "?"),), self._chat
        before = render_text(chat.template, asked, special=chat.special, settings=chat.settings, reply=False)
        return self.text(asked).removeprefix(before)


def _aloud(message: Message) -> Message:
    """Return a message with its thoughts in its words, for a template that looks for them there."""
    return replace(message, content=f"{THINK}\n{message.reasoning}\n{THOUGHT}\n\n{message.content}", reasoning="")
