"""From a host's report of another load to the moment when an open page has it.

What has *Pools and nodes* open here reads the part that the page reads, and as often as its scripts do (`live.js`): a
second after the part before, and so that no more than a fifth of the time goes into reading. It does not draw what it
has read. Hosts that the page shows report another load one after the other.
"""

import re
import threading
import time
import urllib.request
from typing import Any, Protocol

from tests.support.system import System

EVERY_S = 0.25
"""Between two reports of other loads; a host's next one comes when the page has long had the one before."""
LAST_S = 30.0
"""The last ones are waited for so long."""
PAUSE_S, BREATHS = 1.0, 4
"""`data-every` and `data-poll` of the part; how many times longer than a read the pause behind it is at least."""
_CARD = re.compile(r'<section class="card[^"]*"\s+id="(far-\d+)"')
_SHARE = re.compile(r"CPU\s+(\d+)\s*%")


class Fleet(Protocol):
    """Who is told what a host is to report."""

    def ask(self, order: Any) -> Any: ...


class OpenPage(threading.Thread):
    """Reads the page's part again and again."""

    def __init__(self, system: System) -> None:
        super().__init__(daemon=True)
        self._browser, self._url = system.signed_in(), f"{system.url}/cluster"
        self.seen: list[tuple[dict[str, int], float]] = []
        """Share of each card, and when it was there."""
        self.reads_s: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            began = time.time()
            self.read()
            self.reads_s.append(time.time() - began)
            self.over.wait(max(PAUSE_S, BREATHS * self.reads_s[-1]))

    def read(self) -> list[str]:
        """Read the part once; return the hosts that it shows."""
        request = urllib.request.Request(self._url, headers={"X-Part": "1"})
        _, *rest = _CARD.split(self._browser.open(request, timeout=120).read().decode())
        shares = {name: _SHARE.search(text) for name, text in zip(rest[::2], rest[1::2], strict=True)}
        self.seen.append(({name: int(share[1]) for name, share in shares.items() if share}, time.time()))
        return list(shares)


def shown(system: System, fleet: Fleet, seconds: float) -> dict[str, float]:
    """Change loads for some seconds, and time until the page has each."""
    page = OpenPage(system)
    names = page.read()
    page.start()
    changes: list[tuple[str, int, float]] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        name, share = names[len(changes) % len(names)], len(changes) * 37 % 97 + 1
        order = {"do": "load", "node": name, "cpu_share": share / 100}
        changes.append((name, share, fleet.ask(order)["at"]))
        time.sleep(EVERY_S)
    until = time.monotonic() + LAST_S
    while any(_after(page, *one) == float("inf") for one in changes[-len(names) :]) and time.monotonic() < until:
        time.sleep(EVERY_S)
    page.over.set()
    page.join()
    late, reads_s = sorted(_after(page, *change) for change in changes), sorted(page.reads_s)
    return {
        "shown": float(sum(one != float("inf") for one in late)),
        "never_shown": float(sum(one == float("inf") for one in late)),
        "shown_p50_ms": 1000 * late[len(late) // 2],
        "shown_p99_ms": 1000 * late[len(late) * 99 // 100],
        "shown_most_ms": 1000 * late[-1],
        "part_reads": float(len(reads_s)),
        "part_read_p50_ms": 1000 * reads_s[len(reads_s) // 2],
        "part_read_most_ms": 1000 * reads_s[-1],
    }


def _after(page: OpenPage, name: str, share: int, at: float) -> float:
    """Return how long it took until a load was there; infinite when it never was."""
    there = (when - at for shares, when in page.seen.copy() if when >= at and shares.get(name) == share)
    return min(there, default=float("inf"))
