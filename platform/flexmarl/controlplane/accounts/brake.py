"""The brake on guessing passwords: wrong ones are counted, and whoever has too many waits until the window ends.

Four counts, each in windows of its own: a name from an address, an address, a name from anywhere, and everybody. It is
a delay and never a lock: no answer names more than one window, and then tries are looked at again. So that a stranger
cannot keep others out by guessing, a browser in which somebody signed in before (it has a signed cookie) is held to a
count of its own alone. A try is counted before its password is looked at, and given back when it was right: parallel
tries cannot pass together. Counts live in the cache. While that is away each web process counts for itself: an outage
multiplies the limits by the number of processes, and lifts none.
"""

import hashlib
import time
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

import structlog
from django.core.cache import cache, caches
from django.core.cache.backends.base import BaseCache

log = structlog.get_logger(__name__)
HERE = "process"
"""Cache of this process alone."""


@dataclass(frozen=True, slots=True)
class PasswordLimit:
    """So many wrong passwords in a window of so many seconds."""

    kind: str
    most: int
    window_s: int


DEVICE = PasswordLimit("device", 10, 300)
PAIR = PasswordLimit("pair", 10, 300)
ADDRESS = PasswordLimit("address", 30, 300)
NAME = PasswordLimit("name", 60, 300)
EVERYBODY = PasswordLimit("everybody", 120, 60)


@dataclass(frozen=True, slots=True)
class Try:
    """Who tries: a name, from an address, in a browser that is known for this name or not."""

    name: str
    address: str
    device: str = ""

    def counts(self) -> list[tuple[PasswordLimit, str]]:
        """Return what counts this try, the narrowest first."""
        if self.device:
            return [(DEVICE, self.device)]
        near = network_of(self.address)
        return [(PAIR, f"{near} {self.name}"), (ADDRESS, near), (NAME, self.name), (EVERYBODY, "")]


def network_of(address: str) -> str:
    """Return what counts as one address: of IPv6 its network of 64 bits, since one caller has all of those."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(IPv6Address(int(found) >> 64 << 64)) if isinstance(found, IPv6Address) else address


def begin(attempt: Try) -> int:
    """Count a try. Returns 0, or the seconds to wait when it must not be looked at (it then counts nowhere)."""
    now = time.time()
    taken: list[str] = []
    for limit, who in attempt.counts():
        window = int(now // limit.window_s)
        key = _key(limit, who, window)
        taken.append(key)
        if _count(key, 2 * limit.window_s) > limit.most:
            for one in taken:
                _give_back(one)
            return int((window + 1) * limit.window_s - now) + 1
    return 0


def forgive(attempt: Try) -> None:
    """Take a counted try back: its password was right, or nobody looked at it."""
    now = time.time()
    for limit, who in attempt.counts():
        _give_back(_key(limit, who, int(now // limit.window_s)))


def _key(limit: PasswordLimit, who: str, window: int) -> str:
    digest = hashlib.sha256(who.encode("utf-8", "replace")).hexdigest()
    return f"sign-in:{limit.kind}:{digest}:{window}"


def _count(key: str, keep_s: int) -> int:
    try:
        return _counted(cache, key, keep_s)
    except Exception as error:  # whatever the cache's client raises: people must be able to sign in without it
        log.warning("sign_in_counted_here", error=str(error))
        return _counted(caches[HERE], key, keep_s)


def _counted(where: BaseCache, key: str, keep_s: int) -> int:
    where.add(key, 0, timeout=keep_s)
    return int(where.incr(key))


def _give_back(key: str) -> None:
    for where in (cache, caches[HERE]):
        try:
            where.decr(key)
            return
        except Exception as error:  # as above; ValueError too, when it was counted elsewhere, or the window has ended
            log.debug("sign_in_not_given_back", error=str(error))
