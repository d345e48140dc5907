"""The answer that a reply holds: all of it, its last line, its last number, what stands in tags or in \\boxed{}."""

import re
import unicodedata
from hashlib import sha256
from typing import Literal

MOST_CHARACTERS = 20_000
"""Of a reply; what comes after them is not read."""
DIGITS = 16
"""Hexadecimal digits of what an answer is compared by."""
Form = Literal["whole", "last_line", "number", "tag", "boxed"]

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?")
_PLAIN_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d*))?")
_BOXED = "\\boxed{"


def answer_in(form: Form, reply: str) -> str | None:
    """Return the answer in a form, None where the reply has none."""
    return _read(form, reply[:MOST_CHARACTERS]) or None


def _read(form: Form, reply: str) -> str | None:
    match form:
        case "whole":
            return reply.strip()
        case "last_line":
            return next((line.strip() for line in reversed(reply.splitlines()) if line.strip()), None)
        case "number":
            numbers = _NUMBER.findall(reply)
            return numbers[-1].replace(",", "") if numbers else None
        case "tag":
            tagged = _TAGGED.findall(reply)
            return tagged[-1].strip() if tagged else None
        case "boxed":
            return _boxed(reply)


def last_number(text: str) -> float | None:
    """Return the last number that a text holds, None for a text without one; 1,234.5 is one number."""
    number = answer_in("number", text)
    return None if number is None else float(number)


def _boxed(reply: str) -> str | None:
    """Return what the last \\boxed{} holds, braces inside it counted."""
    start = reply.rfind(_BOXED)
    if start < 0:
        return None
    depth, first = 1, start + len(_BOXED)
    for place in range(first, len(reply)):
        depth += {"{": 1, "}": -1}.get(reply[place], 0)
        if depth == 0:
            return reply[first:place].strip()
    return None


def comparable(answer: str) -> str:
    """Return a digest of an answer as votes count it, the same for equal numbers and equal texts; empty for none.

    Texts are compared in their plain Unicode form, with single blanks; numbers by value, so that 12 is 12.0.
    """
    spaced = " ".join(unicodedata.normalize("NFKC", answer).split())
    number = _PLAIN_NUMBER.fullmatch(spaced)
    if number is not None:
        sign, whole, part = number.group(1), number.group(2).lstrip("0") or "0", (number.group(3) or "").rstrip("0")
        value = f"{whole}.{part}" if part else whole
        spaced = value if value == "0" else sign + value
    return sha256(spaced.encode(errors="surrogatepass")).hexdigest()[:DIGITS] if spaced else ""
