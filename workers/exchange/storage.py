"""What the exchange keeps: its members, what they published, and how much of their quota they used, in one SQLite file.

A file of its own, and none of an installation's databases: the exchange belongs to no installation, has one writer and
bounded content, and must run where nothing else of FlexMARL does.

Invariants. A post is one transaction that is on the disk before it is answered, so the process may be killed at any
byte. A content counts once in a task set, whoever repeats it and however often. Numbers only grow, also over restarts.
What one member publishes takes the place of its own older rollouts alone.
"""

import secrets
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flexmarl.contracts.shared_rollouts import PublishedRollout, SharedRollout

MINUTE_S = 60.0
_TABLES = """
CREATE TABLE IF NOT EXISTS member (name TEXT PRIMARY KEY, key BLOB NOT NULL, enrolled_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS rollout (
  no INTEGER PRIMARY KEY AUTOINCREMENT, task_set TEXT NOT NULL, digest TEXT NOT NULL, member TEXT NOT NULL,
  at REAL NOT NULL, bytes INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (task_set, digest));
CREATE INDEX IF NOT EXISTS rollout_of_member ON rollout (member, no);
CREATE INDEX IF NOT EXISTS rollout_by_time ON rollout (at);
CREATE TABLE IF NOT EXISTS posted (member TEXT NOT NULL, at REAL NOT NULL, rollouts INTEGER NOT NULL,
  bytes INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS posted_by_time ON posted (at);
"""


@dataclass(frozen=True, slots=True)
class MemberLimits:
    """What each member may do."""

    rollouts_per_minute: int = 1200
    bytes_per_minute: int = 4 * 2**20
    kept_bytes: int = 16 * 2**20
    """Bytes of a member's rollouts that are kept; older ones of its own make room."""
    keep_s: float = 3600.0
    """Seconds after which a rollout is removed: it was said by a policy that has moved on."""


@dataclass(frozen=True, slots=True)
class Posted:
    """What became of a post."""

    taken: int = 0
    known: int = 0
    """Contents that were there already."""
    again_s: float = 0.0
    """Above 0: nothing was taken, since the quota is used up; seconds until some of it is free."""


class ExchangeStorage:
    """The file, used by any thread of one process at a time; other processes may read and enrol."""

    def __init__(self, path: Path, limits: MemberLimits | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        self.limits = limits or MemberLimits()
        self._lock = threading.Lock()
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30.0)
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = FULL")
        self._file.executescript(_TABLES)

    def close(self) -> None:
        self._file.close()

    def enrol(self, member: str, now: float) -> str:
        """Let a member in, or give it a new key; returns the key, in hexadecimal digits."""
        key = secrets.token_bytes(32)
        with self._lock:
            self._file.execute("INSERT OR REPLACE INTO member VALUES (?, ?, ?)", [member, key, now])
        return key.hex()

    def remove(self, member: str) -> bool:
        """Shut a member out and remove what it published; returns whether there was one."""
        with self._lock, self._transaction():
            self._file.execute("DELETE FROM rollout WHERE member = ?", [member])
            return self._file.execute("DELETE FROM member WHERE name = ?", [member]).rowcount > 0

    def key_of(self, member: str) -> bytes | None:
        """Return the key of a member; None for a stranger."""
        with self._lock:
            found = self._file.execute("SELECT key FROM member WHERE name = ?", [member]).fetchone()
        return None if found is None else bytes(found[0])

    def post(self, member: str, task_set: str, rollouts: Sequence[SharedRollout], size: int, now: float) -> Posted:
        """Take rollouts of a member in; `size` is the bytes of its post, which count with everything in it."""
        with self._lock, self._transaction():
            if again_s := self._count(member, len(rollouts), size, now):
                return Posted(again_s=again_s)
            taken = sum(self._put(member, task_set, rollout, now) for rollout in rollouts)
            self._make_room(member, now)
        return Posted(taken, len(rollouts) - taken)

    def read(self, member: str, task_set: str, after: int, limit: int, most_bytes: int) -> list[PublishedRollout]:
        """Return what others published behind a position, the oldest first, up to so many rollouts and bytes."""
        found: list[PublishedRollout] = []
        with self._lock, closing(self._file.cursor()) as cursor:
            cursor.execute(
                "SELECT no, member, body, bytes FROM rollout WHERE task_set = ? AND no > ? AND member <> ? "
                "ORDER BY no LIMIT ?",
                [task_set, after, member, limit],
            )
            for no, other, body, size in cursor:
                most_bytes -= size + 128
                if most_bytes < 0 and found:
                    break
                found.append(PublishedRollout(no, other, msgspec.json.decode(body, type=SharedRollout)))
        return found

    def refuse(self, member: str, size: int, now: float) -> float:
        """Count a post in which nothing could be read; returns seconds to wait where the quota is used up."""
        with self._lock, self._transaction():
            return self._count(member, 1, size, now)

    def _count(self, member: str, rollouts: int, size: int, now: float) -> float:
        """Use a part of a member's quota, or return the seconds until the oldest part of it is free again."""
        self._file.execute("DELETE FROM posted WHERE at <= ? OR at > ?", [now - MINUTE_S, now + MINUTE_S])
        used, sent, oldest = self._file.execute(
            "SELECT coalesce(sum(rollouts), 0), coalesce(sum(bytes), 0), min(at) FROM posted WHERE member = ?", [member]
        ).fetchone()
        limits = self.limits
        if used + rollouts > limits.rollouts_per_minute or sent + size > limits.bytes_per_minute:
            return max(MINUTE_S - (now - (oldest if oldest is not None else now)), 1.0)
        self._file.execute("INSERT INTO posted VALUES (?, ?, ?, ?)", [member, now, rollouts, size])
        return 0.0

    def _put(self, member: str, task_set: str, rollout: SharedRollout, now: float) -> int:
        body = msgspec.json.encode(rollout)
        return self._file.execute(
            "INSERT OR IGNORE INTO rollout (task_set, digest, member, at, bytes, body) VALUES (?, ?, ?, ?, ?, ?)",
            [task_set, rollout.digest, member, now, len(body), body],
        ).rowcount

    def _make_room(self, member: str, now: float) -> None:
        self._file.execute("DELETE FROM rollout WHERE at < ?", [now - self.limits.keep_s])
        self._file.execute(
            "DELETE FROM rollout WHERE member = ?1 AND no <= (SELECT max(no) FROM (SELECT no, sum(bytes) OVER "
            "(ORDER BY no DESC) AS newer FROM rollout WHERE member = ?1) WHERE newer > ?2)",
            [member, self.limits.kept_bytes],
        )

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._file)


class _Transaction:
    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._file.execute("COMMIT" if failed is None else "ROLLBACK")
