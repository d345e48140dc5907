"""What installations exchange: what the seats of an episode said, in words, and which task it was said to.

Invariants. No reward, no user, no token id, no log-probability and no task travels: a task is named by the digest of
what the environment tells of it, so whoever has no such task can do nothing with its rollouts. What is read is checked
here by the service and by each receiver, by the same limits.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

TASK_SET = r"^[a-z0-9][a-z0-9._-]{0,63}$"
MAX_TURNS = 64
MAX_TEXT = 16_384
"""Characters of a reply."""
MAX_ROLLOUT = 65_536
"""Characters of all replies of a rollout."""
MAX_BATCH = 256
"""Rollouts of one post or answer."""
MAX_BODY = 2**20
"""Bytes of a post or answer."""
CLOCK_S = 300.0
"""Most that the clocks of a member and of the service may differ."""
MEMBER = "X-Flexmarl-Member"
TIME = "X-Flexmarl-Time"
CONTENT = "X-Flexmarl-Content"
"""Header with the digest of the body, so that a signature can be checked before the body is there."""
SIGNATURE = "X-Flexmarl-Signature"

RoleName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
MemberName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
TaskDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
TaskSet = Annotated[str, msgspec.Meta(pattern=TASK_SET)]
ReplyText = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Number = Annotated[int, msgspec.Meta(ge=0)]


class SharedTurn(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    role: RoleName
    text: ReplyText
    whole: bool
    """It ended by itself; False: it was cut off at the most tokens."""


class SharedRollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was said in one episode, in the order in which it was asked."""

    task: TaskDigest
    turns: Annotated[tuple[SharedTurn, ...], msgspec.Meta(min_length=1, max_length=MAX_TURNS)]

    @property
    def digest(self) -> str:
        """Return the digest of the content: equal rollouts have the same, whoever says them."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class PublishedRollout(msgspec.Struct, frozen=True):
    """A rollout as the service hands it out."""

    no: Number
    """Position in the service: it only grows."""
    member: MemberName
    rollout: SharedRollout


class Post(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    task_set: TaskSet
    rollouts: Annotated[list[SharedRollout], msgspec.Meta(max_length=MAX_BATCH)]


class Answer(msgspec.Struct, frozen=True):
    rollouts: Annotated[list[PublishedRollout], msgspec.Meta(max_length=MAX_BATCH)]
    next: Number
    """Position to read on behind."""


def task_digest(environment: str, task: Mapping[str, Any]) -> str:
    """Name a task by what its environment tells of it before anybody speaks."""
    told = json.dumps([environment, task], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(told.encode()).hexdigest()


def problem_of(rollout: SharedRollout) -> str:
    """Return why a rollout of the right shape is not taken, in one word; empty: it is."""
    if sum(len(turn.text) for turn in rollout.turns) > MAX_ROLLOUT:
        return "too_long"
    return "" if all(map(_readable, rollout.turns)) else "bad_characters"


def _readable(turn: SharedTurn) -> bool:
    """Tell whether a text has nothing but printable characters and line breaks."""
    return all(letter.isprintable() or letter in "\n\t" for letter in turn.text)


def content_of(body: bytes) -> str:
    """Return the digest of a body."""
    return hashlib.sha256(body).hexdigest()


def signature(key: bytes, method: str, target: str, at: str, content: str) -> str:
    """Sign a request with the key of its member: method, path with query, time and digest of the body."""
    return hmac.new(key, "\n".join((method, target, at, content)).encode(), hashlib.sha256).hexdigest()
