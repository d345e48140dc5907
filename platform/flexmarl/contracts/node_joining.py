"""What a host that has only the address says when it asks to join, and the code that people compare.

The host makes its node token by itself and names it in the Authorization header, as every later request does. The code
is a part of a hash of that token: who sees it learns nothing of the token, and another host has another one.
"""

import base64
import hashlib
import re
from typing import Annotated

from pydantic import AfterValidator, Field

from flexmarl.contracts.base import Record

PATH = "/nodes/join"
NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
"""Of a node and of its pool."""
NAME_RULE = "1 to 64 small letters, digits, dots, hyphens and underscores, with a letter or digit at both ends"
MOST_BYTES = 128 * 1024
"""Of one request."""
MOST_DEVICES = 512


def _shown(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it must be text that can be shown, without control characters")
    return text


Shown = Annotated[str, Field(max_length=120), AfterValidator(_shown)]


class JoiningDevice(Record):
    """A device as the host would register it."""

    kind: Annotated[str, Field(pattern="^[a-z]{1,16}$")]
    name: Shown
    memory_bytes: int = Field(ge=0, le=2**53)


class NodeJoinRequest(Record):
    """Body of `POST /nodes/join`."""

    node: str = Field(max_length=64)
    pool: str = Field(max_length=64)
    host_name: Shown
    agent_version: Shown
    devices: list[JoiningDevice] = Field(max_length=MOST_DEVICES)


class NodeJoinAnswer(Record):
    """What both `POST` and `GET /nodes/join` answer: how the request stands."""

    state: str
    """waiting | approved | rejected"""
    node: str
    """Name that was asked for, or that was given with the approval."""
    pool: str
    expires_in_s: float
    """So long it still waits; 0 of one that was decided."""


def confirmation_code(token: str) -> str:
    """Return eight letters and digits that stand for a token: 40 bits of its hash, such as `K7QF-2MDA`."""
    digest = hashlib.sha256(f"flexmarl node join {token}".encode()).digest()
    code = base64.b32encode(digest[:5]).decode()
    return f"{code[:4]}-{code[4:]}"
