"""Password hashes: a few at a time, in threads of their own, and never a long line of them.

A hash takes a good part of a second of one core by design. Where everybody who knocks could start one, a handful of
wrong passwords would take the cores from pages, API and health checks. Here at most half of the cores (four at most)
hash, `MOST_AT_ONCE` callers wait for them, and whoever comes beyond that is asked to come back.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.contrib.auth.hashers import PBKDF2PasswordHasher

from flexmarl.controlplane.common.problems import Busy

THREADS = max(1, min(4, (os.cpu_count() or 2) // 2))
MOST_AT_ONCE = 6
"""Requests that hash or wait for it: half of the places of a web process."""
RETRY_AFTER_S = 2
_executor = ThreadPoolExecutor(THREADS, thread_name_prefix="password")
_places = threading.BoundedSemaphore(MOST_AT_ONCE)


class BoundedPBKDF2(PBKDF2PasswordHasher):
    """Django's default hash under the bound. Its hashes are Django's: either reads what the other wrote."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        """Hash a password; checking one does the same. Raises Busy."""
        hashed = super().encode
        return bounded(lambda: hashed(password, salt, iterations))


def bounded(work: Callable[[], str]) -> str:
    """Do a piece of hashing in a thread for it. Raises Busy when too many wait already."""
    if not _places.acquire(blocking=False):
        raise Busy("Too many passwords are being checked.", headers={"Retry-After": str(RETRY_AFTER_S)})
    try:
        return _executor.submit(work).result()
    finally:
        _places.release()
