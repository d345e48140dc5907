"""What an open page costs and how live it is: many sockets on one web process, and the run overview in Chromium.

Sockets: pages listen to the runs of a seeded site while steps are committed, as a driver does, and scripts read over
REST. `socket_*` is the time from the commit of an event to its message at a socket. In the middle every connection is
broken while steps go on; `lost` counts sockets that do not hold the newest sequence of their topics at the end.

Page: the overview of a run with an empty cache. `page_bytes` counts everything transferred but the chart libraries
(Plotly and uPlot, which are cached apart); `lcp_ms` is its largest contentful paint; `interaction_ms` the slowest of
opening the menu of verbs, the palette and a dialog, from input to the next paint; `visible_*` the time from the commit
of a step to the frame that shows its number.
"""

import argparse
import importlib
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django
import numpy as np
from harness import Report, start
from web_site import MIX, LoadProcess, Site, seeded_site

from tests.support.chromium import installed_chromium

CHART_LIBRARIES = ("plotly", "uPlot")
OBSERVE = """() => {
  window.seen = {lcp: 0, slow: 0};
  new PerformanceObserver((list) => { for (const e of list.getEntries()) window.seen.lcp = e.startTime; })
    .observe({type: 'largest-contentful-paint', buffered: true});
  const longest = (list) => Math.max(window.seen.slow, ...list.getEntries().map((entry) => entry.duration));
  const slowest = (list) => { window.seen.slow = longest(list); };
  new PerformanceObserver(slowest)
    .observe({type: 'event', buffered: true, durationThreshold: 16});
  window.steps = {};
  const note = () => {
    const step = document.querySelector('#run-line2 b')?.textContent.replace(/\\D/g, '');
    if (step && !(step in window.steps)) requestAnimationFrame(() => { window.steps[step] ??= Date.now(); });
  };
  new MutationObserver(note).observe(document, {subtree: true, childList: true, characterData: true});
}"""


def main() -> None:
    """Start the site once; measure sockets, then the page."""
    report = start("web", __doc__ or "", _options)
    report.settings["load_before"] = round(os.getloadavg()[0], 2)
    with seeded_site() as site:
        django.setup()
        events = importlib.import_module("web_events")
        committer = events.Committer()
        _sockets(report, site, committer, events.Beat)
        _page(report, site, committer)
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sockets", type=int, default=300)
    parser.add_argument("--rest-per-s", type=int, default=50)
    parser.add_argument("--events-per-s", type=float, default=6.0)
    parser.add_argument("--seconds", type=float, default=30.0)


def _sockets(report: Report, site: Site, committer: Any, beat_class: Any) -> None:
    sockets = 20 if report.quick else int(str(report.settings["sockets"]))
    seconds = 3.0 if report.quick else float(str(report.settings["seconds"]))
    rate = 10 if report.quick else int(str(report.settings["rest_per_s"]))
    topics, paths = site.topics(), [path.format(key=site.keys[0]) for path in MIX]
    load = LoadProcess(site.url, site.cookie, site.token, topics, paths, sockets=sockets, rate=rate)
    beat = beat_class(committer, site.keys, float(str(report.settings["events_per_s"])))
    try:
        beat.start()
        time.sleep(seconds)
        report.figures["reconnect_s"] = load.cut()
        cut_at = time.time()
        time.sleep(seconds / 2)
        beat.stop()
        time.sleep(1.0)
        newest = committer.seqs(topics)
        seen = load.end()
    finally:
        load.kill()
    quiet = report.figures["reconnect_s"] + 1.5
    late = [
        (at - committer.at[topic, seq]) * 1000
        for topic, seq, at in seen["heard"]
        if (topic, seq) in committer.at and not cut_at - quiet <= committer.at[topic, seq] <= cut_at + 0.5
    ]
    lost = sum(held[topic] != newest[topic] for held in seen["held"] for topic in held if topic in newest)
    times = [seconds for seconds, status in seen["answers"] if status == 200]
    report.figures |= {
        "sockets": float(sockets),
        "messages": float(len(late)),
        "socket_p50_ms": float(np.percentile(late, 50)),
        "socket_p99_ms": float(np.percentile(late, 99)),
        "socket_max_ms": max(late),
        "lost": float(lost),
        "rest_per_s": len(times) / (seconds * 1.5 + quiet + 1.0),
        "rest_p50_ms": 1000 * float(np.percentile(times, 50)),
        "rest_p99_ms": 1000 * float(np.percentile(times, 99)),
        "rest_failed": float(len(seen["answers"]) - len(times)),
    }


def _page(report: Report, site: Site, committer: Any) -> None:
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = (
        "1"  # Playwright's loop runs in this thread; nothing else uses the database
    )
    playwright = importlib.import_module("playwright.sync_api")
    path = installed_chromium()
    key, steps = site.keys[1], 4 if report.quick else 20
    # Playwright's event loop runs in this thread, where nobody may wait for the broker: another one commits.
    with ThreadPoolExecutor(1) as aside, playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        paints, transferred = [], 0.0
        for _ in range(1 if report.quick else 5):
            context, page = _window(browser, site)
            client = context.new_cdp_session(page)
            sizes = _weigh(client)
            page.goto(f"{site.url}/runs/{key}")
            page.wait_for_function("() => !document.querySelector('.sk')", timeout=30_000)
            page.wait_for_timeout(500)
            transferred = sum(size for url, size in sizes.items() if not any(word in url for word in CHART_LIBRARIES))
            paints.append(page.evaluate("window.seen.lcp"))
            report.settings["page_parts"] = {url.removeprefix(site.url): size for url, size in sizes.items()}
            if len(paints) < (1 if report.quick else 5):
                context.close()
        slow = _interact(page)
        shown = []
        for _ in range(steps):
            step, at = aside.submit(committer.step, key).result()
            page.wait_for_function("step => String(step) in window.steps", arg=step, timeout=20_000)
            shown.append(page.evaluate("step => window.steps[step]", step) - 1000 * at)
            page.wait_for_timeout(700)
        browser.close()
    report.figures |= {
        "page_bytes": float(transferred),
        "lcp_ms": statistics.median(paints),
        "interaction_ms": slow,
        "visible_p50_ms": float(np.percentile(shown, 50)),
        "visible_max_ms": max(shown),
    }


def _window(browser: Any, site: Site) -> tuple[Any, Any]:
    """Open a signed-in window with an empty cache that notes paints, slow events and steps."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    for part in site.cookie.split("; "):
        name, _, value = part.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": site.url}])
    page = context.new_page()
    page.add_init_script(f"({OBSERVE})()")
    return context, page


def _weigh(client: Any) -> dict[str, float]:
    """Count transferred bytes per address from now on."""
    client.send("Network.enable")
    urls: dict[str, str] = {}
    sizes: dict[str, float] = {}
    client.on("Network.requestWillBeSent", lambda event: urls.update({event["requestId"]: event["request"]["url"]}))

    def ended(event: dict[str, Any]) -> None:
        url = urls.get(event["requestId"], "?")
        sizes[url] = sizes.get(url, 0.0) + event["encodedDataLength"]

    client.on("Network.loadingFinished", ended)
    return sizes


def _interact(page: Any) -> float:
    """Open what opens, and return the slowest input's time to the next paint."""
    page.evaluate("window.seen.slow = 0")
    for press in ("Control+k", "Escape", "?", "Escape"):
        page.keyboard.press(press)
        page.wait_for_timeout(250)
    page.get_by_role("button", name="More actions").click()
    page.wait_for_timeout(250)
    page.keyboard.press("Escape")
    page.wait_for_timeout(400)
    return max(16.0, float(page.evaluate("window.seen.slow")))


if __name__ == "__main__":
    main()
