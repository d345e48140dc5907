"""From a host's report of another load to the moment when an open page shows it, in a browser.

The browser is Chromium with *Pools and nodes* in front, as a person has it open: its own scripts decide when to read
again. Hosts that the page shows report another load one after the other; an observer notes when each stands there.
"""

import importlib
import re
import time
from typing import Any, Protocol

from tests.support.chromium import installed_chromium
from tests.support.system import System

EVERY_S = 0.5
"""Between two reports of other loads; a host's next one comes when the page has long shown the one before."""
LAST_S = 30.0
"""The last one is waited for so long."""
OBSERVE = """() => {
  window.loads = [];
  const last = {};
  const look = () => {
    for (const card of document.querySelectorAll('#cluster section[id^="far-"]')) {
      const share = (card.querySelector('.node-line')?.textContent.match(/CPU\\s+(\\d+)\\s*%/) || [])[1];
      if (share !== undefined && last[card.id] !== share) {
        last[card.id] = share;
        window.loads.push([card.id, Number(share), Date.now() / 1000]);
      }
    }
  };
  look();
  new MutationObserver(look).observe(document.querySelector('#cluster'), {
    childList: true, subtree: true, characterData: true,
  });
  const reads = performance.getEntriesByType.bind(performance, 'resource');
  window.reads = () => reads().filter((one) => one.name.endsWith('/cluster')).map((one) => one.duration);
}"""


class Fleet(Protocol):
    """Who is told what a host is to report."""

    def ask(self, order: Any) -> Any: ...


def shown(system: System, fleet: Fleet, seconds: float) -> dict[str, float]:
    """Change loads for some seconds, and time until the page shows each."""
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=installed_chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        _sign_in(page, system)
        page.goto(f"{system.url}/cluster")
        names = page.eval_on_selector_all('#cluster section[id^="far-"]', "cards => cards.map(card => card.id)")
        page.evaluate(OBSERVE)
        changes, began = [], time.monotonic()
        while time.monotonic() - began < seconds:
            name, share = names[len(changes) % len(names)], len(changes) * 37 % 97 + 1
            order = {"do": "load", "node": name, "cpu_share": share / 100}
            changes.append((name, share, fleet.ask(order)["at"]))
            page.wait_for_timeout(1000 * EVERY_S)
        last, until = changes[-1], time.monotonic() + LAST_S
        while _after(page.evaluate("window.loads"), *last) == float("inf") and time.monotonic() < until:
            page.wait_for_timeout(100)
        passed, seen, reads = time.monotonic() - began, page.evaluate("window.loads"), page.evaluate("window.reads()")
        browser.close()
    late = sorted(_after(seen, *change) for change in changes)
    return {
        "shown": float(sum(one != float("inf") for one in late)),
        "never_shown": float(sum(one == float("inf") for one in late)),
        "shown_p50_ms": 1000 * late[len(late) // 2],
        "shown_p99_ms": 1000 * late[len(late) * 99 // 100],
        "shown_most_ms": 1000 * late[-1],
        "part_reads_s": len(reads) / passed,
        "part_read_p50_ms": sorted(reads)[len(reads) // 2] if reads else 0.0,
    }


def _after(seen: list[tuple[str, int, float]], name: str, share: int, at: float) -> float:
    """Return how long it took until a load was seen; infinite when it never was."""
    return min(
        (when - at for one, value, when in seen if (one, value) == (name, share) and when >= at), default=float("inf")
    )


def _sign_in(page: Any, system: System) -> None:
    page.goto(f"{system.url}/sign-in")
    page.fill("[name=username]", "admin")
    page.fill("[name=password]", system.password)
    page.press("[name=password]", "Enter")
    page.wait_for_url(re.compile(r"^(?!.*sign-in)"))
