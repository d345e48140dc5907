"""What the text of a reply says: thoughts, words and calls of tools, and whether two texts say the same.

Invariant: reading never fails and loses nothing. What is not a whole thought or a whole call is words. Two replies are
equal when they differ at most in blanks around their parts and in how the JSON of a call is written.
Source of the marks: the chat templates of Hermes 2 Pro and Qwen3.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexmarl.language import stops
from flexmarl.language.messages import Message, ToolCall

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"
_OPENING = re.compile(r"\s*" + THINK)
_CALL = re.compile(CALL + r"\s*(?=\{)")
_CALLED = re.compile(r"\s*" + CALLED)


@dataclass(frozen=True, slots=True)
class ReplyMarks:
    """Which marks of a reply mean something where a model's template is used."""

    thoughts: bool = False
    calls: bool = False
    thinking: bool = False
    """The prompt ends within a thought, so the reply begins in one."""


@dataclass(frozen=True, slots=True)
class Thought:
    text: str
    closed: bool = True
    """False: the reply ended before the thought did."""


Part = Thought | ToolCall | str


def read(text: str, marks: ReplyMarks) -> tuple[Part, ...]:
    """Return what a reply says, in its order; an empty one has no parts."""
    parts: list[Part] = []
    if marks.thoughts:
        opening = None if marks.thinking else _OPENING.match(text)
        if marks.thinking or opening:
            thought, mark, text = text[opening.end() if opening else 0 :].partition(THOUGHT)
            parts.append(Thought(thought, bool(mark)))
    return (*parts, *(_calls(text) if marks.calls else [text] if text else []))


def certain(text: str, marks: ReplyMarks) -> tuple[str, str]:
    """Return thoughts and words of a reply that goes on: its message begins with them, whatever comes next.

    Its calls are no part of them, nor are blanks that may turn out to stand at the end.
    """
    text = text.rstrip("\ufffd")  # the first bytes of a character
    opening = _OPENING.match(text) if marks.thoughts else None
    if not (marks.thoughts and marks.thinking) and opening is None:
        early = marks.thoughts and THINK.startswith(text.lstrip())
        # A call behind them would take away the lines in front.
        held = early or (marks.calls and text.startswith("\n"))
        return "", "" if held else _certain_words(text, marks)
    thought, closing, rest = text[opening.end() if opening and not marks.thinking else 0 :].partition(THOUGHT)
    if not closing:
        return stops.certain(thought, (THOUGHT,)).strip("\n"), ""
    return thought.strip("\n"), _certain_words(rest, marks).lstrip("\n")


def _certain_words(text: str, marks: ReplyMarks) -> str:
    return (stops.certain(text, (CALL,)) if marks.calls else text).rstrip()


def message_of(parts: Sequence[Part]) -> Message:
    """Return a reply as a message: its words in one piece, in front of its calls, which is where templates put them."""
    words = [part for part in parts if isinstance(part, str)]
    whole = len(words) == len(parts) == 1
    return Message(
        role="assistant",
        content=words[0] if whole else "\n".join(word.strip("\n") for word in words if word.strip()),
        reasoning="".join(part.text.strip("\n") for part in parts if isinstance(part, Thought)),
        tool_calls=tuple(part for part in parts if isinstance(part, ToolCall)),
    )


def same(one: Sequence[Part], other: Sequence[Part]) -> bool:
    """Whether two replies say the same."""
    return _essence(one) == _essence(other)


def closed(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return a reply as if its thought had come to its end."""
    return tuple(replace(part, closed=True) if isinstance(part, Thought) else part for part in parts)


def thought_marks(text: str) -> int:
    """Return how many marks of thoughts stand in a text."""
    return text.count(THINK) + text.count(THOUGHT)


def written_call(call: ToolCall) -> str:
    """Return a call as models of this form are taught to write it."""
    return f'{CALL}\n{{"name": {_json(call.name)}, "arguments": {_json(call.arguments)}}}\n{CALLED}'


def _essence(parts: Iterable[Part]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for part in parts:
        if isinstance(part, Thought):
            found.append(("thought", part.text.strip(), part.closed))
        elif isinstance(part, ToolCall):
            found.append(("call", part.name, _json(part.arguments)))  # as JSON: for Python 1 equals True
        elif part.strip():
            found.append(("words", part.strip()))
    return found


def _calls(text: str) -> list[Part]:
    """Split words from calls; what does not read as a call stays where it is in the words."""
    parts: list[Part] = []
    start = place = 0
    while opening := _CALL.search(text, place):
        place = opening.end()
        try:
            found, end = _JSON.raw_decode(text, place)
            call = _call(found)
        except (ValueError, RecursionError):
            continue
        closing = _CALLED.match(text, end)
        if closing is None:
            continue
        if opening.start() > start:
            parts.append(text[start : opening.start()])
        parts.append(call)
        start = place = closing.end()
    return [*parts, text[start:]] if start < len(text) else parts


def _call(found: dict[str, Any]) -> ToolCall:
    """Raises ValueError for what would be lost or could not be written again."""
    name, arguments = found.get("name"), found.get("arguments")
    if set(found) != {"name", "arguments"} or not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name and arguments, and nothing else")
    _json(found).encode()
    return ToolCall(name, arguments)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a JSON number")
    return number


_JSON = json.JSONDecoder(object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite)
