"""Messages to token ids and back, by a model's own chat template.

Invariants. `bridge` returns the ids that turn a prompt and what was sampled behind it into the next prompt, or says why
there are none: sampled ids are never rendered again, so the next prompt begins with exactly what the engine saw. A
bridge is given only where the template writes the history so far letter by letter as it stood before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tokenizers import Tokenizer

from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.messages import Message
from flexmarl.language.templates import render_text

Break = Literal["history_rewritten", "turn_not_closed"]
"""Why no bridge leads to the next prompt: the template writes what was said before differently, or it does not show
where the assistant's turn ends."""

_MARK = "\u241f"
"""Stands for what the assistant said while the template is asked what comes behind it; no tokenizer has to know it."""


@dataclass(frozen=True, slots=True)
class Bridge:
    ids: tuple[int, ...] = ()
    broken: Break | None = None


class Renderer:
    """Renders conversations for one model."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatFormat) -> None:
        self._tokenizer = tokenizer
        self._chat = chat

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._chat.stop

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> tuple[int, ...]:
        """Return the prompt ids of a conversation, which end where the assistant begins to speak."""
        return self._encode(self._text(messages, tools))

    def parse(self, ids: Sequence[int]) -> Message:
        """Return what was said by sampled ids, without the ids that end the turn."""
        return Message(role="assistant", content=self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def bridge(
        self,
        before: Sequence[Message],
        sampled: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
    ) -> Bridge:
        """Return the ids that follow `sampled`, which answered the conversation `before`, up to the next reply."""
        prompt, said = self._text(before, tools), self.parse(sampled)
        whole = self._text([*before, said, *new], tools)
        marked = self._text([*before, replace(said, content=_MARK), *new], tools)
        if not whole.startswith(prompt) or not marked.startswith(prompt + _MARK):
            return Bridge(broken="history_rewritten")
        behind = marked[len(prompt) + len(_MARK) :]
        # Templates may strip what was said, and only that: the ids say what it was.
        if whole[len(prompt) :].removesuffix(behind).strip() != said.content.strip():
            return Bridge(broken="history_rewritten")
        return self._closed(sampled, behind)

    def _closed(self, sampled: Sequence[int], behind: str) -> Bridge:
        """Leave out the end of the turn where it was sampled; where it was cut off, the bridge closes it."""
        ids = self._encode(behind)
        if not ids or ids[0] not in self.stop_ids:
            return Bridge(broken="turn_not_closed")
        ended = bool(sampled) and sampled[-1] in self.stop_ids
        if ended and sampled[-1] != ids[0]:
            return Bridge(broken="turn_not_closed")
        return Bridge(ids[1:] if ended else ids)

    def _text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> str:
        return render_text(self._chat.template, messages, tools=tools, special=self._chat.special)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
