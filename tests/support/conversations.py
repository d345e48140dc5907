"""Generated conversations of a model with tools: what it says, letter by letter, what that says, and what follows."""

import json
import random
from dataclasses import dataclass

from flexmarl.language.messages import Message, ToolCall

TOOLS = (
    {"type": "function", "function": {"name": "add", "description": "Adds <a> & „b“ – zusammen.", "strict": True,
     "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}},
    {"type": "function", "function": {"name": "finden", "description": "", "parameters": {"type": "object"}}},
)  # fmt: skip
_WORDS = (
    "Well",
    "7",
    "ü„“",
    "🙂👍🏽",
    "日本語",
    "e\u0301",
    "a\nb",
    "\u2028",
    "1 < 2 & 3 > 2",
    '"quoted"',
    "\\n",
    "{}",
    "\u00a0",
    "'",
)
_TRICKS = ("</tool_call>", "<tool_call>", "</think>", "true", "False", "", " ", "\t")
_WRITERS = (
    lambda value: json.dumps(value, ensure_ascii=False),
    lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    lambda value: json.dumps(value, indent=2),
)


@dataclass(frozen=True, slots=True)
class Spoken:
    """One reply as a model samples it, and what it says."""

    text: str
    says: Message
    """Blanks around its parts are of no account."""
    thought: bool = False
    """It has the mark of a thought."""
    open: bool = False
    """The thought in it has no end."""
    words_behind: bool = False
    """There are words behind its calls."""
    torn: bool = False
    """It was cut off within a character, which `text` does not hold."""
    end: str = "stop"
    """By what it ended: `stop`, `other` (another id that ends turns) or `cut`."""


class Generator:
    """Draws the turns of conversations; with `thoughts` a model thinks before it speaks."""

    def __init__(self, seed: int, *, thoughts: bool) -> None:
        self._rng = random.Random(seed)
        self._thoughts = thoughts

    @property
    def turns(self) -> int:
        return self._rng.randint(2, 6)

    def opening(self) -> tuple[Message, ...]:
        system = (Message("system", self._text()),) if self._rng.random() < 0.5 else ()
        return (*system, Message("user", self._text()))

    def following(self, said: Message) -> tuple[Message, ...]:
        """Return what follows a reply: results of its calls, a word of the user, or both; at times several."""
        rng = self._rng
        results = tuple(Message("tool", self._result()) for _ in said.tool_calls)
        if results and rng.random() < 0.7:
            return results
        if rng.random() < 0.05:
            return (*results, Message("system", self._text()))
        more = (Message("user", self._text()),) if rng.random() < 0.1 else ()
        return (*results, Message("user", self._text()), *more)

    def reply(self) -> Spoken:
        rng = self._rng
        pieces: list[tuple[str, str | ToolCall]] = []
        if self._thoughts and rng.random() < 0.4:
            thought = rng.choice(("", self._text(), self._text()))
            blank = rng.choice(("\n", "\n", ""))
            pieces.append((f"<think>{blank}{thought}{blank}</think>", f"thought:{thought}"))
            pieces.append((rng.choice(("\n\n", "\n", "")), ""))
        words = self._text() if rng.random() < 0.7 else rng.choice(("", "", " ", "\n"))
        pieces.append((words, words))
        calls = [self._call() for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
        for number, (text, call) in enumerate(calls):
            pieces.append((rng.choice(("\n", "\n", "", "\n\n")) if number or words else "", ""))
            pieces.append((text, call))
        behind = self._text() if calls and rng.random() < 0.04 else ""
        pieces.append((f"\n{behind}" if behind else "", behind))
        text = "".join(piece for piece, _ in pieces)
        end = rng.choice(("stop",) * 16 + ("other",) + ("cut",) * 3)
        kept = rng.randint(0, len(text)) if end == "cut" or rng.random() < 0.02 else len(text)
        return _spoken(pieces, kept, end, torn=end == "cut" and rng.random() < 0.3)

    def _call(self) -> tuple[str, ToolCall]:
        rng = self._rng
        call = ToolCall(
            rng.choice(("add", "finden", "größe")), {self._key(): self._value(2) for _ in range(rng.randint(0, 3))}
        )
        write = rng.choice(_WRITERS)
        blank = rng.choice(("\n", "\n", "", " "))
        found = {"name": call.name, "arguments": call.arguments}
        if rng.random() < 0.2:
            found = dict(reversed(found.items()))
        return f"<tool_call>{blank}{write(found)}{blank}</tool_call>", call

    def _key(self) -> str:
        return self._rng.choice(("a", "b", "größe", "with blank", "")) + str(self._rng.randint(0, 9))

    def _value(self, depth: int) -> object:
        rng = self._rng
        if depth and rng.random() < 0.2:
            if rng.random() < 0.5:
                return [self._value(depth - 1) for _ in range(rng.randint(0, 3))]
            return {self._key(): self._value(depth - 1) for _ in range(rng.randint(0, 2))}
        return rng.choice((True, False, None, 0, 1, -1, 1.0, 0.1, 1e300, 10**20, self._text(), rng.choice(_TRICKS)))

    def _result(self) -> str:
        return self._rng.choice((self._text(), "", '{"ok":true, "n": 1.0}', "true", "<b>\n"))

    def _text(self) -> str:
        rng = self._rng
        words = rng.choice((" ", "", "\n", "\n\n")).join(rng.choice(_WORDS) for _ in range(rng.randint(1, 5)))
        return rng.choice(("", "", " ", "\n")) + words + rng.choice(("", "", " ", "\n")) if rng.random() < 0.95 else ""


def _spoken(pieces: list[tuple[str, str | ToolCall]], kept: int, end: str, *, torn: bool) -> Spoken:
    """Return what the first `kept` letters of a reply say."""
    text = words = reasoning = ""
    calls: list[ToolCall] = []
    thought = opened = behind = False
    for piece, says in pieces:
        part = piece[: kept - len(text)]
        whole, text = part == piece, text + part
        if isinstance(says, str) and says.startswith("thought:"):
            if len(part) >= len("<think>"):
                thought, opened = True, not whole
                reasoning = part.removeprefix("<think>").removesuffix("</think>" if whole else "") + "\ufffd" * (
                    torn and not whole
                )
            else:
                words += part
        elif isinstance(says, ToolCall) and whole:
            calls.append(says)
        elif not opened:
            words += part
            behind = behind or bool(calls and part.strip())
    if torn and not opened:
        words += "\ufffd"
        behind = behind or bool(calls)
    says = Message("assistant", words, reasoning, tuple(calls))
    return Spoken(text, says, thought, opened, behind, torn, end)
