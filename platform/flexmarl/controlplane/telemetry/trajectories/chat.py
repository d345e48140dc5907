"""Token ids of a chat as its messages: what a seat read, who said it, and what its reply consists of.

Only the tokenizer is asked: a chat template is foreign code and is not rendered for a page. Templates part messages by
special tokens and name who speaks in words of their own vocabulary, which are read here; a context in which nobody is
named has no messages.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from tokenizers import Tokenizer

from flexmarl.language.messages import Message
from flexmarl.language.replies import THINK, THOUGHT, ReplyMarks, message_of, read

_SPEAKERS = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "model": "assistant", "tool": "tool", "ipython": "tool", "observation": "tool", "environment": "tool",
}  # fmt: skip
"""Words of templates for who speaks."""
_NAMED = re.compile(rf"\s*({'|'.join(_SPEAKERS)})\b[ \t]*(?:\n|$)")
_LINE = re.compile(rf"^({'|'.join(_SPEAKERS)}): ", re.MULTILINE)
"""How the plain template names who speaks."""


def context(decoder: Tokenizer | None, ids: Sequence[int]) -> list[dict[str, str]]:
    """Return the messages of ids that a seat read, each with its speaker; none where no speaker is named."""
    if decoder is None:
        return []
    found: list[dict[str, str]] = []
    is_open = False
    for mark, text in _pieces(decoder, ids):
        if mark:
            named = _SPEAKERS.get(text.strip("<|>[]/ ").lower())
            if named:
                found.append({"speaker": named, "text": ""})
            # A mark may stand between a name and its words.
            is_open = bool(named) or (is_open and not found[-1]["text"])
            continue
        name = None if is_open else _NAMED.match(text)
        if name:
            found.append({"speaker": _SPEAKERS[name[1]], "text": text[name.end() :]})
            is_open = True
        elif is_open:
            found[-1]["text"] += text
        else:
            found += _lines(text)
    named_any = any(one["speaker"] for one in found)
    whole = [{**one, "text": one["text"].strip("\n")} for one in found]
    return [one for one in whole if one["text"].strip()] if named_any else []


def reply(decoder: Tokenizer | None, ids: Sequence[int]) -> Message:
    """Return sampled ids as a message: thoughts, words and calls of tools."""
    if decoder is None:
        return Message("assistant", " ".join(map(str, ids)))
    special = _special(decoder)
    end = len(ids)
    while end and ids[end - 1] in special:
        end -= 1
    text = decoder.decode(list(ids[:end]), skip_special_tokens=False)
    opens = text.lstrip().startswith(THINK)
    thoughts = opens or THOUGHT in text
    return message_of(read(text, ReplyMarks(thoughts=thoughts, calls=True, thinking=thoughts and not opens)))


def _lines(text: str) -> list[dict[str, str]]:
    """Part what stands outside of marks: lines that begin with a speaker, or words of nobody."""
    parts = _LINE.split(text)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [{"speaker": "", "text": parts[0]}, *({"speaker": _SPEAKERS[name], "text": said} for name, said in pairs)]


def _pieces(decoder: Tokenizer, ids: Sequence[int]) -> Iterator[tuple[bool, str]]:
    """Yield special tokens one by one, and the text of what stands between them."""
    special = _special(decoder)
    for is_mark, run in groupby(ids, special.__contains__):
        if is_mark:
            yield from ((True, special[one]) for one in run)
        else:
            yield False, decoder.decode(list(run), skip_special_tokens=False)


@lru_cache(maxsize=64)
def _special(decoder: Tokenizer) -> dict[int, str]:
    return {number: token.content for number, token in decoder.get_added_tokens_decoder().items() if token.special}
